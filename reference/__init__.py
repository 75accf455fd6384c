"""What is right: for each operator its contract, its float64 reference and its error bound.

Imports numpy and ml_dtypes, and nothing of the rest of this project.
"""
