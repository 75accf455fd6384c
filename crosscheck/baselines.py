"""The frameworks' own operators, called as their users call them, on the same inputs as the kernels.

Where a framework has no such operator its function is the formula that a user would write. Each takes what the
operator's call has (``reference/<op>.py``) and raises Unsupported for what the framework's operator does not do.
"""

import contextlib
import functools
from typing import Callable

from reference.contract import Unsupported


def refuse(what: str, covered: str) -> None:
    """what: the argument and its value. covered: what would be accepted."""
    raise Unsupported(f"{what}; covered: {covered}")


def dtype_name(array) -> str:
    """NumPy's name of any framework's array's dtype."""
    return str(array.dtype).removeprefix("torch.")


# PyTorch


def _torch_vector_add(x, y):
    return x + y


def _torch_softmax(x):
    import torch

    return torch.softmax(x, dim=-1)


def _torch_norm(x, weight, eps, residual, return_rstd):
    import torch

    total = x if residual is None else x + residual
    if return_rstd:  # what torch.rms_norm calls, and keeps for the backward pass
        y, rstd = torch.ops.aten._fused_rms_norm(total, weight.shape, weight, eps)
    else:
        y = torch.rms_norm(total, weight.shape, weight, eps).to(x.dtype)
    found = [y] if residual is None else [y, total]
    return (*found, rstd.squeeze(-1)) if return_rstd else tuple(found)


def _torch_rmsnorm(x, weight, eps, residual=None, return_rstd=False, norm=_torch_norm):
    if return_rstd and weight.dtype != x.dtype:
        refuse(f"return_rstd is True and weight has dtype {dtype_name(weight)}", f"{dtype_name(x)}, the dtype of x")
    return norm(x, weight, eps, residual, return_rstd)


def _torch_fused_rms_norm_backward(dy, x, weight, rstd):
    """What autograd calls for ``torch.rms_norm`` on a GPU."""
    import torch

    if x.device.type == "cpu":
        refuse("x is on the CPU", "a GPU")
    if weight.dtype != x.dtype:
        refuse(f"weight has dtype {dtype_name(weight)}", f"{dtype_name(x)}, the dtype of x")
    return torch.ops.aten._fused_rms_norm_backward(dy, x, weight.shape, rstd[:, None], weight, [True, True])


def _torch_rmsnorm_backward(dy, x, weight, rstd):
    rstd = rstd[:, None]  # (rows, 1)
    up, normal = dy.float(), x.float() * rstd  # (rows, cols)
    g = up * weight.float()
    dx = rstd * (g - normal * (g * normal).mean(dim=1, keepdim=True))
    return dx.to(x.dtype), (up * normal).sum(dim=0).to(weight.dtype)


def _torch_multiply(a, b, bias, activation, out_dtype):
    import torch

    if out_dtype in (None, a.dtype):
        z = torch.matmul(a, b) if bias is None else torch.addmm(bias, a, b)
    else:
        z = torch.mm(a, b, out_dtype=out_dtype)
        z = z if bias is None else z + bias
    if activation is None:
        return z
    return torch.nn.functional.gelu(z, approximate="none" if activation == "gelu" else "tanh")


def _torch_matmul(
    a, b, transpose_a=False, transpose_b=False, bias=None, activation=None, out_dtype=None, precision="ieee",
    multiply=_torch_multiply,
):  # fmt: skip
    import torch

    if out_dtype not in (None, dtype_name(a)) and a.device.type == "cpu":
        refuse(f"out_dtype is {out_dtype!r}", f"{dtype_name(a)!r} on a CPU")
    with torch_float32_products(precision):
        out_dtype = out_dtype and getattr(torch, out_dtype)
        return multiply(a.t() if transpose_a else a, b.t() if transpose_b else b, bias, activation, out_dtype)


@contextlib.contextmanager
def torch_float32_products(precision):
    """float32 matrix products of PyTorch on a GPU in ``"ieee"`` or ``"tf32"``."""
    import torch

    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = before


def _torch_attend(q, k, v, causal, scale):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def _heads_second(layout, *arrays):
    """The arrays as (batch, heads, sequence, head_dim), or those back in their layout."""
    return [array.transpose(1, 2) if layout == "bshd" else array for array in arrays]


def _torch_compile_sdpa(q, k, v, *, causal, scale=None, layout="bhsd", return_lse=False):
    if return_lse:
        refuse("return_lse is True", "False")
    (out,) = _heads_second(layout, _compiled(_torch_attend)(*_heads_second(layout, q, k, v), causal, scale))
    return out


def _torch_sdpa_cudnn(q, k, v, *, causal, scale=None, layout="bhsd", return_lse=False):
    import torch

    if q.device.type == "cpu":
        refuse("q is on the CPU", "a GPU")
    forward = functools.partial(
        torch.ops.aten._scaled_dot_product_cudnn_attention, attn_bias=None, compute_log_sumexp=True
    )
    return _torch_attention("cudnn", forward, q, k, v, causal, scale, layout, return_lse)


def _torch_sdpa_flash(q, k, v, *, causal, scale=None, layout="bhsd", return_lse=False):
    import torch

    name = "_scaled_dot_product_flash_attention" + "_for_cpu" * (q.device.type == "cpu")
    return _torch_attention("flash", getattr(torch.ops.aten, name), q, k, v, causal, scale, layout, return_lse)


def _torch_attention(name, forward, q, k, v, causal, scale, layout, return_lse):
    """SDPA held to the backend of a name. forward: what that calls, which gives the log-sum-exp too."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if q.numel() == 0:  # its CPU kernel would divide by 0
        refuse(f"q has shape {tuple(q.shape)}", "no empty axis")
    q, k, v = _heads_second(layout, q, k, v)
    if q.device.type == "cuda":
        able = getattr(torch.backends.cuda, f"can_use_{name}_attention")
        if not able(torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, causal, False)):
            refuse(f"q has shape {tuple(q.shape)}", f"what PyTorch's can_use_{name}_attention says")
    if return_lse:
        out, lse, *_ = forward(q, k, v, is_causal=causal, scale=scale)
        return *_heads_second(layout, out), lse.reshape(q.shape[:3])
    with sdpa_kernel(getattr(SDPBackend, f"{name.upper()}_ATTENTION")):
        (out,) = _heads_second(layout, _torch_attend(q, k, v, causal, scale))
    return out


def _compiled(function: Callable) -> Callable:
    """The function under torch.compile."""

    def call(*arguments):
        described = ((tuple(a.shape), a.stride(), a.dtype) if hasattr(a, "dtype") else a for a in arguments)
        return _compile_anew(function, *described)(*arguments)

    return call


@functools.cache
def _compile_anew(function, *described):
    import torch

    # A fresh start for every shape: after eight recompilations dynamo would run eagerly without a word.
    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(function, dynamic=False, fullgraph=True)


# JAX


def _jitted(function: Callable, *static: str) -> Callable:
    """The function under ``jax.jit``. static: its arguments that are no arrays."""
    return lambda *arrays, **arguments: _jit(function, static)(*arrays, **arguments)


@functools.cache
def _jit(function, static):
    import jax

    return jax.jit(function, static_argnames=static)


def _jax_vector_add(x, y):
    return x + y


def _jax_softmax(x):
    import jax

    return jax.nn.softmax(x, axis=-1)


def _jax_rmsnorm(x, weight, *, eps, residual=None, return_rstd=False):
    import jax.numpy as jnp
    from jax import lax

    total = x if residual is None else x + residual
    # XLA is free to go on with the sum as it was before its rounding.
    row = total.astype(jnp.float32)  # (rows, cols)
    rstd = lax.rsqrt(jnp.mean(row * row, axis=1) + eps)  # (rows,)
    found = [(row * rstd[:, None] * weight.astype(jnp.float32)).astype(x.dtype)]
    if residual is not None:
        found.append(total)
    if return_rstd:
        found.append(rstd)
    return tuple(found)


def _jax_rmsnorm_backward(dy, x, weight, rstd):
    import jax.numpy as jnp

    rstd = rstd[:, None]  # (rows, 1)
    up, normal = dy.astype(jnp.float32), x.astype(jnp.float32) * rstd  # (rows, cols)
    g = up * weight.astype(jnp.float32)
    dx = rstd * (g - normal * jnp.mean(g * normal, axis=1, keepdims=True))
    return dx.astype(x.dtype), jnp.sum(up * normal, axis=0).astype(weight.dtype)


def _jax_matmul(a, b, *, transpose_a=False, transpose_b=False, bias=None, activation=None, out_dtype=None,
                precision="ieee"):  # fmt: skip
    import jax
    import jax.numpy as jnp

    # JAX's default for float32 on a GPU is TF32.
    exact = jax.lax.Precision.HIGHEST if precision == "ieee" and a.dtype == "float32" else jax.lax.Precision.DEFAULT
    z = jnp.matmul(
        a.T if transpose_a else a, b.T if transpose_b else b, precision=exact, preferred_element_type=out_dtype
    )
    z = z if bias is None else z + bias
    return z if activation is None else jax.nn.gelu(z, approximate=activation == "gelu_tanh")


def _jax_attention(q, k, v, *, causal, scale=None, layout="bhsd", return_lse=False):
    if return_lse:
        refuse(f"return_lse is True, and JAX's is {dtype_name(q)}", "False")
    if q.size == 0:
        refuse(f"q has shape {q.shape}", "no empty axis")
    implementation = "cudnn" if next(iter(q.devices())).platform == "gpu" else "xla"
    if implementation == "xla" and q.dtype == "float16":
        refuse("q has dtype float16", "bfloat16 on a CPU")
    attend = _jit(_jax_attend, ("causal", "scale", "layout", "implementation"))
    return attend(q, k, v, causal=causal, scale=scale, layout=layout, implementation=implementation)


def _jax_attend(q, k, v, *, causal, scale, layout, implementation):
    import jax

    # JAX takes (batch, sequence, heads, head_dim); where heads come first each may be a batch of its own, uncopied.
    shape = q.shape
    if layout == "bhsd":
        q, k, v = (array.reshape(-1, shape[2], 1, shape[3]) for array in (q, k, v))
    out = jax.nn.dot_product_attention(q, k, v, is_causal=causal, scale=scale, implementation=implementation)
    return out.reshape(shape)


# CuPy


def _cupy_vector_add(x, y):
    return x + y


def _cupy_matmul(a, b, transpose_a=False, transpose_b=False, bias=None, activation=None, out_dtype=None,
                 precision="ieee"):  # fmt: skip
    if bias is not None or activation is not None:
        refuse("bias is given" if bias is not None else f"activation is {activation!r}", "the product alone")
    if dtype_name(a) not in ("float16", "float32"):
        refuse(f"a has dtype {dtype_name(a)}", "float16 or float32")
    if out_dtype not in (None, dtype_name(a)):
        refuse(f"out_dtype is {out_dtype!r}", dtype_name(a))
    if precision != "ieee":  # CuPy reads its choice from the environment, once
        refuse(f"precision is {precision!r}", "'ieee'")
    import cupy

    return cupy.matmul(a.T if transpose_a else a, b.T if transpose_b else b)


# (backend, operator) -> variant -> function of the native arrays.
FUNCTIONS = {
    ("torch", "vector_add"): {"torch.add": _torch_vector_add},
    ("torch", "softmax"): {"torch.softmax": _torch_softmax},
    ("torch", "rmsnorm"): {"torch.rms_norm": _torch_rmsnorm},
    ("torch", "rmsnorm_backward"): {
        "aten._fused_rms_norm_backward": _torch_fused_rms_norm_backward,
        "eager": _torch_rmsnorm_backward,
    },
    ("torch", "matmul"): {"torch.matmul": _torch_matmul},
    ("torch", "attention"): {"sdpa_cudnn": _torch_sdpa_cudnn, "sdpa_flash": _torch_sdpa_flash},
    ("torch_compile", "vector_add"): {"torch.compile": _compiled(_torch_vector_add)},
    ("torch_compile", "softmax"): {"torch.compile": _compiled(_torch_softmax)},
    ("torch_compile", "rmsnorm"): {"torch.compile": functools.partial(_torch_rmsnorm, norm=_compiled(_torch_norm))},
    ("torch_compile", "rmsnorm_backward"): {"torch.compile": _compiled(_torch_rmsnorm_backward)},
    ("torch_compile", "matmul"): {
        "torch.compile": functools.partial(_torch_matmul, multiply=_compiled(_torch_multiply))
    },
    ("torch_compile", "attention"): {"torch.compile": _torch_compile_sdpa},
    ("jax", "vector_add"): {"jax.jit": _jitted(_jax_vector_add)},
    ("jax", "softmax"): {"jax.nn.softmax": _jitted(_jax_softmax)},
    ("jax", "rmsnorm"): {"jax.jit": _jitted(_jax_rmsnorm, "eps", "return_rstd")},
    ("jax", "rmsnorm_backward"): {"jax.jit": _jitted(_jax_rmsnorm_backward)},
    ("jax", "matmul"): {
        "jnp.matmul": _jitted(_jax_matmul, "transpose_a", "transpose_b", "activation", "out_dtype", "precision")
    },
    ("jax", "attention"): {"jax.nn.dot_product_attention": _jax_attention},
    ("cupy", "vector_add"): {"cupy.add": _cupy_vector_add},
    ("cupy", "matmul"): {"cupy.matmul": _cupy_matmul},
}
