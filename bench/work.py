"""What a case has to do, before anything is measured: bytes, FLOPs, and the floor they set on a device.

The bytes are the fewest: every input read once, every output written once. The FLOPs are the algorithm's, an
exponential or a square root counted as one; a causal attention does not do the hidden half.
"""

import math
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
    """A GPU's peaks. bandwidth: bytes a second. rates: FLOPs a second, dense, by arithmetic; ``"float32"`` is that
    outside the tensor cores."""

    bandwidth: float
    rates: Mapping[str, float]

    def floor(self, work: Work) -> tuple[float, str]:
        """Seconds below which no call can come, and what decides: ``memory`` or ``arithmetic``."""
        rate = self.rates.get(work.rate, math.inf)
        times = {"memory": work.bytes / self.bandwidth, "arithmetic": work.flops / rate}
        roof = max(times, key=times.get)
        return times[roof], roof


# NVIDIA's datasheets (SXM).
_HOPPER = {"float16": 989.4e12, "bfloat16": 989.4e12, "tf32": 494.7e12, "float32": 66.9e12}
DEVICES = {"H200": Device(4.8e12, _HOPPER), "H100": Device(3.35e12, _HOPPER)}

# FLOPs a clock of one multiprocessor, dense, accumulated in float32 (NVIDIA's architecture white papers).
FLOPS_PER_CLOCK = {
    "sm_80": {"float16": 2048, "bfloat16": 2048, "tf32": 1024, "float32": 128},
    "sm_86": {"float16": 512, "bfloat16": 512, "tf32": 256, "float32": 256},
    "sm_89": {"float16": 1024, "bfloat16": 1024, "tf32": 512, "float32": 256},
    "sm_90": {"float16": 4096, "bfloat16": 4096, "tf32": 2048, "float32": 256},
    "sm_100": {"float16": 8192, "bfloat16": 8192, "tf32": 4096, "float32": 256},
}


class Hardware(NamedTuple):
    """What the driver says of a GPU. clock_hz, memory_clock_hz: the highest; l2_bytes: of its L2 cache."""

    multiprocessors: int
    clock_hz: float
    memory_clock_hz: float
    bus_bits: int
    l2_bytes: int

    def device(self, arch: str) -> Device:
        """The peaks: at the highest clocks, memory moving data on both edges; no rates for an unknown architecture."""
        clocks = self.multiprocessors * self.clock_hz
        rates = {name: clocks * flops for name, flops in FLOPS_PER_CLOCK.get(arch, {}).items()}
        return Device(2 * self.memory_clock_hz * self.bus_bits / 8, rates)


def hardware() -> Hardware:
    """What the driver says of the first GPU that CUDA shows."""
    from cuda.bindings import driver

    driver.cuInit(0)
    names = ("MULTIPROCESSOR_COUNT", "CLOCK_RATE", "MEMORY_CLOCK_RATE", "GLOBAL_MEMORY_BUS_WIDTH", "L2_CACHE_SIZE")
    of = driver.CUdevice_attribute
    count, clock, memory, bus, l2 = (
        driver.cuDeviceGetAttribute(getattr(of, f"CU_DEVICE_ATTRIBUTE_{name}"), 0)[1] for name in names
    )
    return Hardware(count, 1e3 * clock, 1e3 * memory, bus, l2)


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
        rate = "float32"
    elif case.dtype != "float32":
        rate = case.dtype
    else:
        rate = "tf32" if case.arguments.get("precision") == "tf32" else "float32"
    return Work(OPERATORS[case.operator].bytes(case), FLOPS[case.operator](case.shape, case.arguments), rate)
