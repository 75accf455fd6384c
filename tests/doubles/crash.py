"""Dies at length 1025, is right otherwise."""

import os
import sys

from tests.doubles import right

ARRAYS = "numpy"


def vector_add(x, y):
    if len(x) == 1025:
        print("something terrible", file=sys.stderr, flush=True)
        os.abort()
    return right.vector_add(x, y)
