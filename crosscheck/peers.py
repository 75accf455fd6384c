"""Other people's kernels, called as their users call them, on the same inputs as ours. On a GPU, where installed.

Each function takes what the operator's call has (``reference/<op>.py``) and raises Unsupported for what these kernels
do not do.
"""

import functools
import math

from crosscheck.baselines import dtype_name, refuse
from reference.contract import NotRun

# Liger (Triton)


def _check_liger(x):
    if x.shape[1] > 1 << 16:
        refuse(f"x has shape {tuple(x.shape)}", "cols of 65536 or less")


def _liger_softmax(x):
    _check_liger(x)
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)


# Of Liger's ways to round, "gemma" is the contract's: all in float32, once to the dtype at the end.


def _liger_rmsnorm(x, weight, eps, residual=None, return_rstd=False):
    _check_liger(x)
    if residual is None:
        from liger_kernel.ops.rms_norm import rms_norm_forward

        y, _, rstd, *_ = rms_norm_forward(x, weight, eps, 0.0, "gemma", None)
        found = [y]
    else:
        from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward

        y, total, rstd, *_ = fused_add_rms_norm_forward(x, residual, weight, eps, 0.0, "gemma")
        found = [y, total]
    return (*found, rstd) if return_rstd else tuple(found)


def _liger_rmsnorm_backward(dy, x, weight, rstd):
    _check_liger(x)
    from liger_kernel.ops.rms_norm import _CASTING_MODE_GEMMA, rms_norm_backward
    from liger_kernel.ops.utils import calculate_settings

    block, warps = calculate_settings(x.shape[1])
    # Not in place, which would write dx to dy. No name here: it would be taken for none of the three.
    return rms_norm_backward(dy, x, weight, rstd, 0.0, _CASTING_MODE_GEMMA.value, block, warps, False, None)


# Quack (CuTe)


def _quack_softmax(x):
    vector = 16 // x.element_size()
    if x.shape[1] % vector:
        refuse(f"x has shape {tuple(x.shape)} and dtype {dtype_name(x)}", f"cols that are multiples of {vector}")
    from quack import softmax

    return softmax(x)


def _quack_rmsnorm(x, weight, eps, residual=None, return_rstd=False):
    from quack.rmsnorm import rmsnorm_fwd

    y, total, rstd = rmsnorm_fwd(x, weight, residual=residual, eps=eps, store_rstd=return_rstd)
    found = [y] if residual is None else [y, total]
    return (*found, rstd) if return_rstd else tuple(found)


def _quack_rmsnorm_backward(dy, x, weight, rstd):
    from quack.rmsnorm import rmsnorm_bwd

    return rmsnorm_bwd(x, weight, dy, rstd)[:2]


# FlashAttention 4 (CuTe)


def _flash_attention(q, k, v, *, causal, scale=None, layout="bhsd", return_lse=False):
    from flash_attn.cute import flash_attn_func

    if layout == "bhsd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out, lse = flash_attn_func(q, k, v, softmax_scale=scale, causal=causal, return_lse=return_lse)
    out = out.transpose(1, 2) if layout == "bhsd" else out
    return (out, lse) if return_lse else out


# The kernels that come with JAX (Pallas on Mosaic GPU)


def _check_hopper(array):
    (device,) = array.devices()
    if device.compute_capability != "9.0":
        raise NotRun(
            f"the device has compute capability {device.compute_capability}; these kernels are for 9.0, Hopper"
        )


def _mosaic_matmul(
    a, b, transpose_a=False, transpose_b=False, bias=None, activation=None, out_dtype=None, precision="ieee", *, cluster
):
    if dtype_name(a) not in ("float16", "bfloat16"):
        refuse(f"a has dtype {dtype_name(a)}", "float16 or bfloat16")
    if out_dtype not in (None, dtype_name(a)):
        refuse(f"out_dtype is {out_dtype!r}", f"{dtype_name(a)!r}")
    if transpose_a or transpose_b:
        refuse(f"transpose_a is {transpose_a} and transpose_b {transpose_b}", "False for both")
    if bias is not None or activation is not None:
        refuse("bias is given" if bias is not None else f"activation is {activation!r}", "the product alone")
    (m, k), n = a.shape, b.shape[1]
    tile_n = 512 if cluster else 256
    if m % 128 or n % tile_n or k % 64 or k == 0:
        refuse(f"M, N and K are {m}, {n} and {k}", f"multiples of 128, {tile_n} and 64")
    _check_hopper(a)
    return _mosaic_matmul_jitted(cluster)(a, b)


@functools.cache
def _mosaic_matmul_jitted(cluster):
    import jax
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as kernels

    along = kernels.MatmulDimension
    config = kernels.TuningConfig(
        tile_m=128,
        tile_n=128,
        tile_k=64,
        max_concurrent_steps=4,
        grid_minor_dim=along.N,
        grid_tile_width=8,
        wg_dimension=along.N,
        cluster_dimension=along.N if cluster else None,
    )
    return jax.jit(lambda a, b: kernels.matmul(a, b, None, config))


def _mosaic_attention(q, k, v, *, causal, scale=None, layout="bhsd", return_lse=False):
    if dtype_name(q) != "float16":  # its buffers are float16, whatever it is given
        refuse(f"q has dtype {dtype_name(q)}", "float16")
    sequence = q.shape[layout.index("s")]
    if sequence % 128 or q.size == 0:
        refuse(f"q has shape {q.shape} with layout {layout!r}", "a sequence that is a multiple of 128")
    _check_hopper(q)
    return _mosaic_attend(causal, scale, layout, return_lse)(q, k, v)


@functools.cache
def _mosaic_attend(causal, scale, layout, return_lse):
    import jax
    from jax.experimental.pallas.ops.gpu import attention_mgpu as kernels

    config = kernels.TuningConfig(block_q=64, block_kv=128, max_concurrent_steps=2, causal=causal)

    def attend(q, k, v):
        shape = q.shape
        # It does not scale; q does, rounded once more where the scale is no power of two.
        q = q * (1 / math.sqrt(shape[3]) if scale is None else scale)
        # It takes (batch, sequence, heads, head_dim); where heads come first each may be a batch of its own, uncopied.
        if layout == "bhsd":
            q, k, v = (array.reshape(-1, shape[2], 1, shape[3]) for array in (q, k, v))
        found = kernels.attention(q, k, v, config, return_lse)
        if not return_lse:
            return found.reshape(shape)
        out, (lse,) = found  # lse (batch, heads, sequence), to base 2
        heads_first = (shape[0], -1, shape[layout.index("s")])
        return out.reshape(shape), lse.reshape(heads_first) * math.log(2)

    return jax.jit(attend)


# (backend, operator) -> variant -> function of the native arrays.
FUNCTIONS = {
    ("liger", "softmax"): {"LigerSoftmaxFunction": _liger_softmax},
    ("liger", "rmsnorm"): {"rms_norm_forward": _liger_rmsnorm},
    ("liger", "rmsnorm_backward"): {"rms_norm_backward": _liger_rmsnorm_backward},
    ("quack", "softmax"): {"softmax": _quack_softmax},
    ("quack", "rmsnorm"): {"rmsnorm_fwd": _quack_rmsnorm},
    ("quack", "rmsnorm_backward"): {"rmsnorm_bwd": _quack_rmsnorm_backward},
    ("flash_attn", "attention"): {"flash_attn_func": _flash_attention},
    ("jax_mosaic", "matmul"): {
        "128x256": functools.partial(_mosaic_matmul, cluster=False),
        "128x256_cluster": functools.partial(_mosaic_matmul, cluster=True),
    },
    ("jax_mosaic", "attention"): {"attention_mgpu": _mosaic_attention},
}
