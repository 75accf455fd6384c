"""Where a caller's time goes in our launchers, and what device memory a call takes."""

import contextlib
import functools
import statistics
from dataclasses import replace
from typing import Callable
from unittest import mock

from bench.clocks import Candidate, stream
from crosscheck.backends import Implementation

CALLS, BATCHES = 1000, 5


def microseconds(candidate: Candidate) -> float:
    """The median over some batches of what a call costs its caller."""
    return 1e6 * statistics.median(stream(candidate, CALLS) for _ in range(BATCHES))


def breakdown(backend: Implementation, operator: str, candidate: Candidate) -> dict[str, float | None]:
    """Microseconds of a small call's argument checks (with all else that a wrapper thinks about), allocation and launch.

    checks: what is left when launches do nothing and allocations are taken away; allocation: the call's own ones,
    replayed alone. In Pallas the two are XLA's one dispatch, and ``allocation`` is None.
    """
    whole = microseconds(candidate)
    launch, allocators = STUBS[backend.name](backend.module(operator), candidate)
    asked = []
    note = lambda allocate: lambda *a, **k: asked.append(functools.partial(allocate, *a, **k)) or allocate(*a, **k)
    with contextlib.ExitStack() as noted:
        for module, name in allocators:
            noted.enter_context(mock.patch.object(module, name, note(getattr(module, name))))
        candidate.wait([candidate.call()])
    with launch:
        unlaunched = microseconds(candidate)
    if not allocators:
        return {"checks": unlaunched, "allocation": None, "launch": whole - unlaunched}
    allocation = microseconds(replace(candidate, call=lambda: [allocate() for allocate in asked]))
    return {"checks": unlaunched - allocation, "allocation": allocation, "launch": whole - unlaunched}


def _nothing(*_, **__):
    return None


def _cuda(module, candidate: Candidate):
    from cupy_impl import device

    allocators = [(device, name) for name in ("empty", "empty_like") if hasattr(device, name)]
    return mock.patch.object(device, "launch", _nothing), allocators


def _triton(module, candidate: Candidate):
    import torch
    from triton.runtime.jit import JITFunction

    return mock.patch.object(JITFunction, "run", _nothing), [(torch, "empty"), (torch, "empty_like")]


def _pallas(module, candidate: Candidate):
    import jax

    jitted = {name: value for name, value in vars(module).items() if isinstance(value, type(jax.jit(_nothing)))}
    results = {}

    def keeping(name):
        return lambda *a, **k: results.setdefault(name, jitted[name](*a, **k))

    with mock.patch.multiple(module, **{name: keeping(name) for name in jitted}):
        candidate.call()
    stubs = {name: functools.partial(lambda result, *_, **__: result, results.get(name)) for name in jitted}
    return mock.patch.multiple(module, **stubs), []


# Of a backend: what makes a launch do nothing, and where its allocators are, as (module, name).
STUBS = {"cuda": _cuda, "triton": _triton, "pallas": _pallas}


def peak_memory(kind: str, function: Callable, arguments: list, keywords: dict) -> int:
    """Bytes of device memory a call takes beyond its inputs at its peak, outputs included."""
    return {"torch": _torch_peak, "cupy": _cupy_peak, "jax": _jax_peak}[kind](function, arguments, keywords)


def _torch_peak(function, arguments, keywords) -> int:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function(*arguments, **keywords)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _cupy_peak(function, arguments, keywords) -> int:
    import cupy

    class Peak(cupy.cuda.MemoryHook):
        name = "peak"
        now = most = 0

        def malloc_postprocess(self, **what):
            self.now += what["mem_size"]
            self.most = max(self.most, self.now)

        def free_postprocess(self, **what):
            self.now -= what["mem_size"]

    with Peak() as hook:
        function(*arguments, **keywords)
    return hook.most


def _jax_peak(function, arguments, keywords) -> int:
    import jax

    arrays = {name: value for name, value in keywords.items() if isinstance(value, jax.Array)}
    rest = {name: value for name, value in keywords.items() if name not in arrays}
    call = jax.jit(lambda arguments, arrays: function(*arguments, **arrays, **rest))
    analysis = call.lower(arguments, arrays).compile().memory_analysis()
    return analysis.output_size_in_bytes + analysis.temp_size_in_bytes - analysis.alias_size_in_bytes
