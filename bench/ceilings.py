"""What this GPU does at best, measured: the bandwidth of plain streams and the rate of matrix products.

Library code on large operands, by the same clock as everything else.
"""

import functools
import statistics
from typing import Callable

from bench.clocks import Candidate, DeviceClock
from crosscheck.baselines import torch_float32_products

STREAM = 1 << 32  # bytes of an array that is streamed: far more than the caches hold
N = {"bfloat16": 8192, "float16": 8192, "tf32": 8192, "float32": 4096}  # of square products


def candidates() -> dict[str, tuple[Callable[[], object], float]]:
    """A ceiling's key in result files to the call that shows it and what that call does: terabytes, or TFLOP."""
    import torch

    x, y, z = (torch.empty(STREAM // 4, device="cuda").normal_() for _ in range(3))
    calls = {
        "copy_tb_s": (lambda: y.copy_(x), 2 * STREAM / 1e12),
        "stream_tb_s": (lambda: torch.add(x, y, out=z), 3 * STREAM / 1e12),
    }
    for rate, n in N.items():
        dtype = getattr(torch, "float32" if rate == "tf32" else rate)
        a, b = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
        precision = "tf32" if rate == "tf32" else "ieee"
        calls[f"{rate}_tflop_s"] = functools.partial(_product, a, b, precision), 2 * n**3 / 1e12
    return calls


def _product(a, b, precision: str):
    with torch_float32_products(precision):
        return a @ b


def measure(clock: DeviceClock, batches: int = 3, calls: int = 5) -> dict[str, float]:
    """TB/s (bytes read and written) and TFLOP/s by name: the medians of interleaved calls."""
    import torch

    ceilings, wait = candidates(), lambda results: torch.cuda.synchronize()
    timed = {name: Candidate("torch", call, wait) for name, (call, _) in ceilings.items()}
    for candidate in timed.values():
        candidate.call()
    times = {name: [] for name in timed}
    for spans in clock.batches(timed, dict.fromkeys(timed, calls), batches):
        for name, own in spans.items():
            times[name] += [span.end - span.start for span in own]
    return {name: ceilings[name][1] / (statistics.median(taken) / 1e9) for name, taken in times.items()}
