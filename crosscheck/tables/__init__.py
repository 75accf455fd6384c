"""The frozen cases, one module an operator: OPERATORS and cases()."""
