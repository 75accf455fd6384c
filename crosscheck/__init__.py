"""Feeds identical inputs to every implementation of an operator and holds the results to one reference."""
