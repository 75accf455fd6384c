"""Who is checked: the three implementations, the baselines, peers, and any module of functions named like operators.

Nothing here imports a framework before a call needs it. ``tier`` is ``"gpu"`` or ``"cpu"``: on a CPU the CUDA
sources run in the host build, Triton and Mosaic GPU in their interpreters.
"""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import io
from dataclasses import dataclass
from typing import Callable, Mapping

import numpy as np

from crosscheck.arrays import TIERS
from crosscheck.cases import OPERATORS, Case
from crosscheck.machine import Gpu
from reference.contract import pick, words


class Race(RuntimeError):
    """Mosaic GPU's interpreter saw two accesses that nothing orders."""


def installed(package: str) -> bool:
    """Whether a package, or a module within one, is there; found without importing it (but what it is within)."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True)
class Backend:
    """One column of the table.

    name: as on the command line. role: ``implementation``, ``baseline`` or ``peer``. packages: what must be importable.
    cpu_environment: variables its process needs without a GPU; backends that agree on them share a process.
    """

    name: str
    role: str
    packages: tuple[str, ...]
    cpu_environment: tuple[tuple[str, str], ...] = ()

    def unavailable(self, tier: str) -> str | None:
        """Why it cannot run here at all, or None."""
        missing = [p for p in self.packages if not installed(p)]
        return f"{words(missing)} not installed" if missing else None

    def kind(self, tier: str) -> str:
        """The arrays it takes: a key of ``crosscheck.arrays.KINDS``."""
        raise NotImplementedError

    without_gpu = "CPU"  # where it runs then, in the table's words

    def where(self, gpu: Gpu | None) -> str:
        """Where its rows run."""
        return gpu.name if gpu else self.without_gpu

    def variants(self, operator: str) -> tuple[str, ...]:
        """Names of its variants of an operator, () where it does not have the operator."""
        raise NotImplementedError

    def best(self, operator: str, dtype: str, gpu: Gpu | None) -> str:
        """The variant that is meant where none is named."""
        return self.variants(operator)[0]

    def below(self, operator: str, variant: str) -> tuple[str, ...]:
        """The variants that are meant in turn, where none is named and ``variant``, the best, refuses the arrays."""
        return ()

    def not_run(self, case: Case, tier: str, inputs) -> str | None:
        """Why a case says nothing here, or None. inputs: ``runner.Inputs``."""
        return None

    def function(self, operator: str, variant: str, tier: str) -> Callable:
        """``f(*inputs, out=..., **arguments)``; ``out`` only where its signature has it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Implementation(Backend):
    """A package of this project."""

    package: str = ""

    def module(self, operator: str):
        return importlib.import_module(f"{self.package}.{OPERATORS[operator].module}")

    def has(self, operator: str) -> bool:
        """Whether the package has the operator, found without importing it."""
        return importlib.util.find_spec(f"{self.package}.{OPERATORS[operator].module}") is not None

    def variants(self, operator: str) -> tuple[str, ...]:
        return tuple(v.name for v in self.module(operator).VARIANTS[operator]) if self.has(operator) else ()

    def best(self, operator: str, dtype: str, gpu: Gpu | None) -> str:
        return pick(self.module(operator).VARIANTS[operator], None, dtype, gpu and gpu.arch).name

    def function(self, operator: str, variant: str, tier: str) -> Callable:
        extra = {"variant": variant} | (self.cpu_arguments() if tier == "cpu" else {})
        return functools.partial(getattr(self.module(operator), operator), **extra)

    def cpu_arguments(self) -> Mapping[str, object]:
        return {}


class Cuda(Implementation):
    without_gpu = "host build"

    def below(self, operator: str, variant: str) -> tuple[str, ...]:
        names = self.variants(operator)
        return names[: names.index(variant)][::-1]

    def unavailable(self, tier: str) -> str | None:
        if tier == "gpu":
            return super().unavailable(tier)
        from cupy_impl import host

        return host.unavailable()

    def kind(self, tier: str) -> str:
        return "cupy" if tier == "gpu" else "numpy"

    def cpu_arguments(self) -> Mapping[str, object]:
        from cupy_impl import host

        return {"runtime": host}


class Triton(Implementation):
    without_gpu = "interpreter"

    def kind(self, tier: str) -> str:
        return "torch"

    def not_run(self, case: Case, tier: str, inputs) -> str | None:
        if tier == "cpu" and case.dtype == "bfloat16":
            return "Triton's interpreter computes bfloat16 wrongly (triton issue 11584)"
        return None


class Pallas(Implementation):
    without_gpu = "interpreter"

    def kind(self, tier: str) -> str:
        return "jax"

    def not_run(self, case: Case, tier: str, inputs) -> str | None:
        return _flushed(inputs.values) if tier == "cpu" else None

    def function(self, operator: str, variant: str, tier: str) -> Callable:
        call = super().function(operator, variant, tier)
        return call if tier == "gpu" else watch_races(call)

    def cpu_arguments(self) -> Mapping[str, object]:
        from jax.experimental.pallas import mosaic_gpu as plgpu

        return {"interpret": plgpu.InterpretGPUParams(detect_races=True)}


def watch_races(call: Callable) -> Callable:
    """The same call, which raises Race where Mosaic GPU's interpreter sees one."""

    @functools.wraps(call.func)
    def watched(*inputs, **arguments):
        # The detector keeps what it saw of the last launch alone, and prints what it sees of every one.
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            result = call(*inputs, **arguments)
            importlib.import_module("jax").effects_barrier()
        if "RACE DETECTED" in said.getvalue():
            raise Race(said.getvalue().strip().splitlines()[0])
        return result

    return watched


def _flushed(values: list[np.ndarray]) -> str | None:
    least = np.finfo(np.float32).tiny
    for value in values:
        size = np.abs(value.astype(np.float32))
        if np.any((size > 0) & (size < least)):
            return "JAX on a CPU flushes float32's subnormal numbers to zero"
    return None


@dataclass(frozen=True)
class Baseline(Backend):
    """A framework's own operator, for comparison; ``baselines`` has its functions."""

    arrays: str = ""

    def unavailable(self, tier: str) -> str | None:
        if self.name == "cupy" and tier == "cpu":
            return "CuPy needs a GPU"
        return super().unavailable(tier)

    def kind(self, tier: str) -> str:
        return self.arrays

    def functions(self, operator: str) -> Mapping[str, Callable]:
        from crosscheck import baselines

        return baselines.FUNCTIONS.get((self.name, operator), {})

    def variants(self, operator: str) -> tuple[str, ...]:
        return tuple(self.functions(operator))

    def not_run(self, case: Case, tier: str, inputs) -> str | None:
        return _flushed(inputs.values) if self.name == "jax" and tier == "cpu" else None

    def function(self, operator: str, variant: str, tier: str) -> Callable:
        return self.functions(operator)[variant]


class Peer(Baseline):
    """Somebody else's kernels, for comparison, where they are installed; ``peers`` has its functions."""

    def unavailable(self, tier: str) -> str | None:
        return super().unavailable(tier) or (f"{self.name} needs a GPU" if tier == "cpu" else None)

    def functions(self, operator: str) -> Mapping[str, Callable]:
        from crosscheck import peers

        return peers.FUNCTIONS.get((self.name, operator), {})


class _Stranger(Backend):
    """What holds of all implementations that are not of this project."""

    def unavailable(self, tier: str) -> str | None:
        kind = self.kind(tier)
        return (
            None
            if kind in TIERS[tier]
            else f"it takes {kind} arrays, and on a {tier.upper()} there are {words(TIERS[tier])} ones"
        )

    def not_run(self, case: Case, tier: str, inputs) -> str | None:
        return _flushed(inputs.values) if self.kind(tier) == "jax" and tier == "cpu" else None


@dataclass(frozen=True)
class Function(_Stranger):
    """One function that somebody hands over."""

    call: Callable = None
    arrays: str = ""

    def kind(self, tier: str) -> str:
        return self.arrays

    def variants(self, operator: str) -> tuple[str, ...]:
        return (operator,)

    def function(self, operator: str, variant: str, tier: str) -> Callable:
        return self.call


@dataclass(frozen=True)
class Foreign(_Stranger):
    """A module of somebody else's: functions named like operators, ``ARRAYS`` saying what they take."""

    def module(self):
        return importlib.import_module(self.name)

    def kind(self, tier: str) -> str:
        return self.module().ARRAYS

    def variants(self, operator: str) -> tuple[str, ...]:
        return (operator,) if hasattr(self.module(), operator) else ()

    def function(self, operator: str, variant: str, tier: str) -> Callable:
        return getattr(self.module(), operator)


IMPLEMENTATIONS = ("cuda", "triton", "pallas")

_JAX_ON_CPU = (("CUDA_VISIBLE_DEVICES", ""), ("JAX_PLATFORMS", "cpu"))

BACKENDS: Mapping[str, Backend] = {
    b.name: b
    for b in (
        Cuda("cuda", "implementation", ("cupy", "cuda.bindings"), _JAX_ON_CPU, package="cupy_impl"),
        # Triton chooses between compiling and interpreting when it is imported, torch.compile needs it to compile.
        Triton(
            "triton",
            "implementation",
            ("torch", "triton"),
            (("CUDA_VISIBLE_DEVICES", ""), ("TRITON_INTERPRET", "1")),
            package="triton_impl",
        ),
        Pallas("pallas", "implementation", ("jax",), _JAX_ON_CPU, package="pallas_impl"),
        Baseline("torch", "baseline", ("torch",), _JAX_ON_CPU, arrays="torch"),
        Baseline("torch_compile", "baseline", ("torch",), _JAX_ON_CPU, arrays="torch"),
        Baseline("jax", "baseline", ("jax",), _JAX_ON_CPU, arrays="jax"),
        Baseline("cupy", "baseline", ("cupy",), _JAX_ON_CPU, arrays="cupy"),
        Peer("liger", "peer", ("torch", "triton", "liger_kernel"), _JAX_ON_CPU, arrays="torch"),
        Peer("quack", "peer", ("torch", "cutlass", "quack"), _JAX_ON_CPU, arrays="torch"),
        Peer("flash_attn", "peer", ("torch", "cutlass", "flash_attn.cute"), _JAX_ON_CPU, arrays="torch"),
        Peer("jax_mosaic", "peer", ("jax", "absl"), _JAX_ON_CPU, arrays="jax"),
    )
}


def usual(tier: str) -> list[str]:
    """Who runs where nobody is named: no peers, and torch.compile on a GPU only."""
    return [b.name for b in BACKENDS.values() if b.role != "peer" and (b.name != "torch_compile" or tier == "gpu")]


def implemented(operator: str) -> bool:
    """Whether any package of this project has the operator yet."""
    return any(BACKENDS[name].has(operator) for name in IMPLEMENTATIONS)


def find(name: str) -> Backend:
    """The backend of a name, or the module of that name as one."""
    return BACKENDS[name] if name in BACKENDS else Foreign(name, "implementation", (), _JAX_ON_CPU)


def accepts(function: Callable, keyword: str) -> bool:
    """Whether a function says that it takes a keyword argument of that name."""
    try:
        parameter = inspect.signature(function).parameters.get(keyword)
    except (TypeError, ValueError):  # some builtins and compiled functions say nothing
        return False
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
