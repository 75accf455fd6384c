"""What a case has to do, before anything is measured: bytes, FLOPs, and the floor they set on a device.

The bytes are the fewest: every input read once, every output written once. The FLOPs are the algorithm's, an
exponential or a square root counted as one; a causal attention does not do the hidden half.
"""

from typing import Callable, Mapping, NamedTuple

from crosscheck.cases import OPERATORS, Case


class Work(NamedTuple):
    """bytes and flops of a call; rate: the arithmetic they are done in, a key of a device's rates."""

    bytes: int
    flops: int
    rate: str

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.bytes if self.bytes else 0.0


class Device(NamedTuple):
    """A GPU by its datasheet. bandwidth: bytes a second. rates: FLOPs a second, dense, by arithmetic."""

    bandwidth: float
    rates: Mapping[str, float]

    def floor(self, work: Work) -> tuple[float, str]:
        """Seconds below which no call can come, and what decides: ``memory`` or ``arithmetic``."""
        times = {"memory": work.bytes / self.bandwidth, "arithmetic": work.flops / self.rates[work.rate]}
        roof = max(times, key=times.get)
        return times[roof], roof


# NVIDIA's datasheets (SXM). "scalar" is float32 outside the tensor cores.
_HOPPER = {"float16": 989.4e12, "bfloat16": 989.4e12, "tf32": 494.7e12, "scalar": 66.9e12}
DEVICES = {"H200": Device(4.8e12, _HOPPER), "H100": Device(3.35e12, _HOPPER)}

# FLOPs by operator, of a case's shape and arguments.
FLOPS: dict[str, Callable[[Mapping[str, int], Mapping[str, object]], int]] = {
    "vector_add": lambda s, a: s["n"],
    # maximum, subtraction, exponential, sum, division
    "softmax": lambda s, a: 5 * s["rows"] * s["cols"],
    # square, sum, times rstd, times weight; and the residual's sum
    "rmsnorm": lambda s, a: (5 if a.get("residual") else 4) * s["rows"] * s["cols"],
    # dy w, its product with x, their sum, x times that, difference, times rstd; dy x, times rstd, sum down the rows
    "rmsnorm_backward": lambda s, a: 9 * s["rows"] * s["cols"],
    "matmul": lambda s, a: 2 * s["m"] * s["n"] * s["k"],
    "attention": lambda s, a: (
        4
        * s["batch"]
        * s["heads"]
        * s["head_dim"]
        * (s["sequence"] * (s["sequence"] + 1) // 2 if a["causal"] else s["sequence"] ** 2)
    ),
}


def work(case: Case) -> Work:
    """What a case has to do."""
    if case.operator not in ("matmul", "attention"):
        rate = "scalar"
    elif case.dtype != "float32":
        rate = case.dtype
    else:
        rate = "tf32" if case.arguments.get("precision") == "tf32" else "scalar"
    return Work(OPERATORS[case.operator].bytes(case), FLOPS[case.operator](case.shape, case.arguments), rate)
