"""Ends the process that imports it."""

import sys

ARRAYS = "numpy"
sys.exit(0)
