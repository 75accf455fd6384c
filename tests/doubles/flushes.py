"""Leaves the processor in another floating-point mode, as a library built with fast math does."""

import torch

ARRAYS = "torch"


def vector_add(x, y):
    torch.set_flush_denormal(True)
    return x + y
