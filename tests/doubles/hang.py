"""Never returns."""

import time

ARRAYS = "numpy"


def vector_add(x, y):
    time.sleep(3600)
