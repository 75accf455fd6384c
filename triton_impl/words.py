"""16-bit numbers in pairs, 32-bit words as they lie in memory: half the registers of their values in float32."""

import triton
import triton.language as tl


@triton.jit
def low(words, DTYPE: tl.constexpr):
    """The first number of each word, in float32."""
    if DTYPE == tl.bfloat16:
        value = (words << 16).to(tl.float32, bitcast=True)
    else:
        value = words.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
    return value


@triton.jit
def high(words, DTYPE: tl.constexpr):
    """The second one."""
    if DTYPE == tl.bfloat16:
        value = (words & -65536).to(tl.float32, bitcast=True)
    else:
        value = (words >> 16).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
    return value


@triton.jit
def pack(first, second, DTYPE: tl.constexpr):
    """The words of two numbers in float32, each rounded once."""
    first = first.to(DTYPE).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return first | second.to(DTYPE).to(tl.int16, bitcast=True).to(tl.int32) << 16


@triton.jit
def zero(number):
    """0 as an integer, of a float32 that is not below 0, which the compiler does not know.

    Words changed by it are others to the compiler: what it unpacks of them it unpacks anew, after the number is there,
    where to keep it would take twice the registers that there are. Of a NaN it may be -1.
    """
    return number.to(tl.int32, bitcast=True) >> 31
