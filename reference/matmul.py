"""Matmul with an epilogue: ``out = f(A B + bias)``, A (M, K), B (K, N), f none, GELU or its tanh form.

Contract
    a (M, K), or (K, M) with transpose_a; b (K, N), or (N, K) with transpose_b; bias (N,) or None; M, N >= 1, K >= 0
    (an empty sum is 0). One dtype for all: float16, bfloat16 or float32. a and b are row-major with rows any
    distance apart, or the transposed view of such an array. out (M, N) has out_dtype: by default the inputs' dtype,
    or float32.
    Products of 16-bit numbers are exact in float32 and accumulate in float32, in any order, in one chain or several;
    the tensor cores' own additions, which truncate, are allowed. float32 means IEEE float32: fused or
    separate multiply and add, each rounded to nearest. precision="tf32", for float32 alone, allows inputs cut to 10
    bits of mantissa and tensor-core accumulation. Bias and activation follow in float32, and one rounding to out_dtype
    at the end, to nearest, ties to even. Partial sums have to stay finite in float32.
    gelu(z) = z/2 (1 + erf(z / sqrt 2)); gelu_tanh(z) = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) (Hendrycks and
    Gimpel, "Gaussian error linear units", 2016, section 2). NaN and infinities go where IEEE arithmetic takes them, and
    nowhere but to their own row or column of out. ``out=`` is contiguous and overlaps nothing.

Error bound, per element, u = 2^-24, p_k = a_k b_k the products, R the range of their partial sums
    accumulation: ``B = u c max(R, ||p||_2) + K 2^-149``, c = 6 sqrt(K) for IEEE float32, 6 sqrt(K) + K/4 on tensor
    cores. Each addition of a chain is wrong by at most u times the partial sum it gives, which R covers (for any
    consecutive split of K as well); K such errors of random sign come to sqrt(K) u R with a confidence of 6 (Higham
    and Mary, "A new approach to probabilistic rounding error analysis", 2019; ||p||_2 is what partial sums in an order
    of their own come to, "Sharper probabilistic backward error analysis for basic linear algebra kernels with random
    data", 2020). A tensor core aligns 16 products and the accumulator to the largest, cuts each to 2 or more bits
    beyond float32's, adds and cuts the sum (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor
    cores", 2021): cuts all point one way, so they add up, u/4 on average a product and u/8 for its share of the sum's
    cut. Against an accumulator that only reaches R at the end, K/4 in all has a good half in reserve.
    TF32 adds ``2^-9 (|sum p| + 2 ||p||_2)``: two inputs are cut, each by up to 2^-10 of itself. The mean of these cuts
    shrinks the sum as a whole, what they differ by is of random sign.
    epilogue: z = A B + bias costs one rounding, u |z|. Through GELU, whose slope stays below 1.13,
    ``1.13 (B + u |z|) + u (4 |z| + 4 |g|)``, g the result: an erf or tanh good for 4 u near -1 is off by that much of
    z/2, however small g itself is there.
"""

import math

import numpy as np

from reference.contract import (
    ArrayInfo,
    Expected,
    U,
    among,
    check_devices,
    check_dtypes,
    check_outputs,
    row_major,
    words,
)

DTYPES = ("float16", "bfloat16", "float32")
ACTIVATIONS = (None, "gelu", "gelu_tanh")
PRECISIONS = ("ieee", "tf32")


def check(
    a: ArrayInfo,
    b: ArrayInfo,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: ArrayInfo | None = None,
    activation: str | None = None,
    out_dtype: str | None = None,
    precision: str = "ieee",
    out: ArrayInfo | None = None,
    *,
    platform: str = "cuda",
) -> tuple[int, int, int]:
    """Refuse what the contract does not allow; returns M, N and K.

    out_dtype: a dtype's name. Raises TypeError for dtypes, ValueError for ranks, lengths, strides, names, devices
    and overlaps; each names the argument, its value and what is accepted. platform: where the implementation's
    arrays live.
    """
    inputs = {"a": a, "b": b} if bias is None else {"a": a, "b": b, "bias": bias}
    check_dtypes(inputs, DTYPES)
    accepted = tuple(dict.fromkeys((a.dtype, "float32")))
    if out_dtype not in (None, *accepted):
        raise TypeError(f"out_dtype is {out_dtype!r}; accepted: {words(accepted)}")
    among("activation", activation, ACTIVATIONS)
    among("precision", precision, PRECISIONS)
    if precision == "tf32" and a.dtype != "float32":
        raise ValueError(f"precision is 'tf32' and a has dtype {a.dtype}; accepted: tf32 with float32")
    for name, info, axes in (
        ("a", a, "(K, M)" if transpose_a else "(M, K)"),
        ("b", b, "(N, K)" if transpose_b else "(K, N)"),
    ):
        if len(info.shape) != 2:
            raise ValueError(f"{name} has shape {info.shape}; accepted: two axes, {axes}")
        _check_strides(name, info)
    (m, k), (other_k, n) = (i.shape[::-1] if t else i.shape for i, t in ((a, transpose_a), (b, transpose_b)))
    if k != other_k:
        raise ValueError(
            f"b has shape {b.shape}, K = {other_k}, and a has {a.shape}, K = {k}; accepted: one K for both"
        )
    if m == 0 or n == 0:
        raise ValueError(
            f"a has shape {a.shape}, M = {m}, and b has {b.shape}, N = {n}; accepted: M and N of 1 or more"
        )
    if bias is not None:
        if bias.shape != (n,):
            raise ValueError(f"bias has shape {bias.shape}; accepted: ({n},), N")
        if bias.strides is not None and n > 1 and bias.strides[0] != 1:
            raise ValueError(f"bias has stride {bias.strides[0]}; accepted: contiguous, stride 1")
    written = {} if out is None else check_outputs([out], {"out": ((m, n), out_dtype or a.dtype)}, inputs)
    check_devices({**inputs, **written}, platform)
    return m, n, k


def _check_strides(name: str, info: ArrayInfo) -> None:
    if info.strides is None or 0 in info.shape:
        return
    rows, cols = info.shape
    by_row, by_col = info.strides
    row_major_view = (cols == 1 or by_col == 1) and (rows == 1 or by_row >= cols)
    transposed_view = (rows == 1 or by_row == 1) and (cols == 1 or by_col >= rows)
    if not row_major_view and not transposed_view:
        raise ValueError(
            f"{name} has strides {info.strides}; accepted: row-major, {row_major(info.shape)} or rows further apart, "
            f"or a transposed view, {row_major(info.shape[::-1])[::-1]} or cols further apart"
        )


def expect(
    a: np.ndarray,
    b: np.ndarray,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: np.ndarray | None = None,
    activation: str | None = None,
    out_dtype: str | None = None,
    precision: str = "ieee",
) -> dict[str, Expected]:
    """``{"out": Expected}``, (M, N), in float64."""
    # --- load A and B
    left, right = a.astype(np.float64), b.astype(np.float64)
    left, right = left.T if transpose_a else left, right.T if transpose_b else right  # (M, K), (K, N)
    with np.errstate(invalid="ignore"):
        # --- multiply and accumulate
        z = left @ right
        ieee = a.dtype == np.float32 and precision == "ieee"
        bound = accumulation(left, right, truncating=not ieee)
        if precision == "tf32":
            bound += 2.0**-9 * (np.abs(z) + 2 * np.sqrt((left * left) @ (right * right)))
        # --- bias
        if bias is not None:
            z = z + bias.astype(np.float64)
            bound += U * np.abs(z)
        # --- activation
        out = z
        if activation is not None:
            out = gelu(z) if activation == "gelu" else gelu_tanh(z)
            bound = 1.13 * bound + U * (4 * np.abs(z) + 4 * np.abs(out))
    # --- store
    return {"out": Expected(out, bound, out_dtype or a.dtype.name)}


def accumulation(a: np.ndarray, b: np.ndarray, truncating: bool = True, terms: np.ndarray | None = None) -> np.ndarray:
    """How far a float32 accumulation of a (M, K) times b (K, N) may be off, (M, N): B in the module's docstring.

    truncating: on tensor cores. terms: (M, 1), how many leading products of a row are not 0, where that is known to
    be fewer than K.
    """
    k = a.shape[1] if terms is None else terms
    high, low = np.zeros((2, a.shape[0], b.shape[1]))
    total = np.zeros_like(high)
    for start in range(0, a.shape[1], 64):
        total += a[:, start : start + 64] @ b[start : start + 64]
        np.maximum(high, total, out=high)
        np.minimum(low, total, out=low)
    norm = np.sqrt((a * a) @ (b * b))
    return U * (6 * np.sqrt(k) + truncating * k / 4) * np.maximum(high - low, norm) + k * 2.0**-149


def erfc(x: np.ndarray) -> np.ndarray:
    """1 - erf(x), each element as the C library has it, correct in the tail too."""
    return np.fromiter(map(math.erfc, x.flat), np.float64, x.size).reshape(x.shape)


def gelu(z: np.ndarray) -> np.ndarray:
    """z times the normal distribution's integral up to z: z/2 (1 + erf(z / sqrt 2)), without cancellation below 0."""
    return z / 2 * erfc(-z / math.sqrt(2))


def gelu_tanh(z: np.ndarray) -> np.ndarray:
    """z/2 (1 + tanh t), t = sqrt(2/pi) (z + 0.044715 z^3); as z / (1 + exp(-2t)), without cancellation below 0."""
    t = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
    with np.errstate(over="ignore"):
        return z / (1 + np.exp(-2 * t))


def traffic(m: int, n: int, k: int, tile_m: int, tile_n: int, itemsize: int, out_itemsize: int | None = None) -> int:
    """Bytes between memory and the multiprocessors if each output tile reads its strips of A and B and no cache helps.

    Every column of tiles reads all of A, every row of tiles all of B, and out is written once. So a tile does
    2 tile_m tile_n FLOP for (tile_m + tile_n) itemsize bytes, and a square one has the fewest bytes for its area.
    """
    reads = -(-n // tile_n) * m * k + -(-m // tile_m) * k * n
    return reads * itemsize + m * n * (out_itemsize or itemsize)
