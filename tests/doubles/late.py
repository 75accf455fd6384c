"""Right, and brings its process down a moment later."""

import os
import threading

from tests.doubles import right

ARRAYS = "numpy"


def vector_add(x, y):
    threading.Timer(0.02, os.abort).start()
    return right.vector_add(x, y)
