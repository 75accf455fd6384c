"""Measures what ``crosscheck`` has found right."""
