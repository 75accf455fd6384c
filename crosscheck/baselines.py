"""The frameworks' own operators, called as their users call them, on the same inputs as the kernels."""

import functools


def _torch_vector_add(x, y):
    return x + y


@functools.cache
def _compiled(function, shape, dtype):
    import torch

    # A fresh start for every shape: after eight recompilations dynamo would run eagerly without a word.
    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(function, dynamic=False, fullgraph=True)


def _torch_compile_vector_add(x, y):
    return _compiled(_torch_vector_add, x.shape, x.dtype)(x, y)


@functools.cache
def _jitted(function):
    import jax

    return jax.jit(function)


def _jax_vector_add(x, y):
    import jax

    return _jitted(jax.numpy.add)(x, y)


def _cupy_vector_add(x, y):
    return x + y


# (backend, operator) -> variant -> function of the native arrays.
FUNCTIONS = {
    ("torch", "vector_add"): {"torch.add": _torch_vector_add},
    ("torch_compile", "vector_add"): {"torch.compile": _torch_compile_vector_add},
    ("jax", "vector_add"): {"jax.jit": _jax_vector_add},
    ("cupy", "vector_add"): {"cupy.add": _cupy_vector_add},
}
