"""Runs one backend on one case, in this process, and says how it went in a row."""

import functools
import hashlib
import importlib.util
import os
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crosscheck import backends
from crosscheck.arrays import GUARD, KINDS, POISON, Poisoned, poison_bits
from crosscheck.cases import OPERATORS, Case
from crosscheck.compare import Judgement, judge
from crosscheck.machine import Gpu
from reference.contract import Expected, NotRun, Unsupported, round_once


@dataclass(frozen=True)
class Task:
    """One row to make. variant None: the backend's best."""

    backend: str
    case: Case
    variant: str | None = None


def new_row(task: Task, backend: backends.Backend, gpu: Gpu | None) -> dict:
    """A row with nothing in it yet."""
    case = task.case
    return {
        "operator": case.operator,
        "backend": task.backend,
        "variant": task.variant,
        "role": backend.role,
        "case": case.id,
        "dtype": case.dtype,
        "shape": dict(case.shape),
        "arguments": dict(case.arguments),
        "inputs_sha256": None,
        "where": backend.where(gpu),
        "verdict": "not run",
        "error_over_bound": None,
        "max_ulp": None,
        "bitwise_equal": None,
        "outputs": {},
        "reason": None,
        "seconds": None,
    }


class Inputs:
    """A case's inputs: drawn once, moved to the device once, the same bytes for every backend."""

    def __init__(self, case: Case, tier: str, adapters: dict):
        self.case, self.tier, self._adapters = case, tier, adapters
        self.operator = OPERATORS[case.operator]
        self._native: dict[str, list] = {}
        self._pristine: list | None = None
        self._draw()

    def _draw(self) -> None:
        case = self.case
        self.host = self.operator.draw(case)
        digest = hashlib.sha256()
        for values in self.host.values():
            digest.update(values.view(np.uint8).data)
        self.sha256 = digest.hexdigest()
        self.sample = self.operator.sample(case)
        self.expected = self.operator.expect(case, self.host, self.sample)
        self.first: tuple[dict, list] | None = None  # the first passing row of a sampled case, and its outputs
        self.__dict__.pop("values", None)

    def redraw(self) -> None:
        """Other values from the next seed, in the very memory on a GPU where the last ones are."""
        self.case = replace(self.case, seed=self.case.seed + 1)
        self._draw()
        tensors = self.native("torch")
        for tensor, values in zip(tensors, self.host.values()):
            tensor.copy_(self._adapters["torch"].put(values))
        # The other kinds' arrays may remember what they held: JAX's keep a copy on the host.
        self._native = {"torch": tensors}
        self._pristine = self.sample and [tensor.clone() for tensor in tensors]

    @functools.cached_property
    def values(self) -> list[np.ndarray]:
        """The inputs, and the outputs as they should come out; 0 for what the bound lets be flushed to zero."""
        tiny = np.finfo(np.float32).tiny
        outputs = [round_once(np.where(e.bound < tiny, e.value, 0), e.dtype) for e in self.expected.values()]
        return [*self.host.values(), *outputs]

    def native(self, kind: str) -> list:
        """The inputs as arrays of a kind; on a GPU PyTorch's, where it is installed, are everybody's memory."""
        if kind not in self._native:
            adapter, host = self._adapters[kind], list(self.host.values())
            shared = self.tier == "gpu" and hasattr(adapter, "from_torch") and importlib.util.find_spec("torch")
            if shared and all(values.size for values in host):
                self._native[kind] = [adapter.from_torch(tensor) for tensor in self.native("torch")]
            else:
                self._native[kind] = [adapter.put(values) for values in host]
            if kind == "torch" and self.sample is not None:
                self._pristine = [tensor.clone() for tensor in self._native[kind]]
        return self._native[kind]

    def call(self, kind: str) -> tuple[list, dict[str, object]]:
        """The call's arguments by position and by keyword, with arrays of a kind."""
        return self.operator.call(self.case, dict(zip(self.host, self.native(kind))))

    def changed(self, kind: str) -> str | None:
        """Which input a backend has written to, or None; if one, everybody gets fresh inputs afterwards."""
        reason = None
        for i, name in enumerate(self.host):
            array = self._native[kind][i]
            if self._pristine is not None:
                bits = [
                    t.view(self._adapters["torch"].torch.uint8) for t in (self._native["torch"][i], self._pristine[i])
                ]
                same = bool((bits[0] == bits[1]).all())
            else:
                same = self._adapters[kind].get(array).tobytes() == self.host[name].tobytes()
            if not same:
                reason = f"the call wrote to its input {name}"
        if reason:
            self._native.clear()
        return reason


MOST_DIFFERING = 4096  # elements of two backends of a big case that are held to the reference


class Adapters(dict):
    """The kinds of arrays of a tier, each made when it is first asked for."""

    def __init__(self, tier: str):
        self.tier = tier

    def __missing__(self, kind: str):
        self[kind] = KINDS[kind](self.tier)
        return self[kind]


class Runner:
    """Runs tasks in this process; keeps the inputs of the case it is at."""

    def __init__(self, gpu: Gpu | None, own: backends.Backend | None = None):
        """gpu: where to run, None for the CPU. own: the backend to run, instead of the one a task names."""
        self.gpu, self.own = gpu, own
        self.tier = "gpu" if gpu else "cpu"
        self.adapters = Adapters(self.tier)
        self.inputs: Inputs | None = None
        self.broken = False  # the device may not answer any more: use a fresh process

    def run(self, task: Task) -> list[dict]:
        """The task's row, and one that passed before and that this task has shown to be wrong, if any."""
        backend, case = self.own or backends.find(task.backend), task.case
        row = new_row(task, backend, self.gpu)
        if reason := backend.unavailable(self.tier):
            return [row | {"reason": reason}]
        try:
            if not backend.variants(case.operator):
                return [row | {"reason": f"{task.backend} has no {case.operator}"}]
            row["variant"] = task.variant or backend.best(case.operator, case.dtype, self.gpu)
            function = backend.function(case.operator, row["variant"], self.tier)
            kind = backend.kind(self.tier)
        except Unsupported as refusal:
            return [row | {"verdict": "unsupported", "reason": str(refusal)}]
        except Exception as error:
            return [row | {"verdict": "fail", "reason": brief(error)}]
        if self.inputs is None or self.inputs.case.id != case.id:
            self.inputs = None  # free the last case's memory first
            self.inputs = Inputs(case, self.tier, self.adapters)
        row["inputs_sha256"] = self.inputs.sha256
        if self.inputs.sample is not None and importlib.util.find_spec("torch") is None:
            return [
                row | {"reason": "a case of this size is compared on the device by PyTorch, which is not installed"}
            ]
        if reason := backend.not_run(case, self.tier, self.inputs):
            return [row | {"reason": reason}]
        try:
            return self._call(row, function, kind)
        except NotRun as reason:
            return [row | {"reason": str(reason)}]
        except Unsupported as refusal:
            for variant in () if task.variant else backend.below(case.operator, row["variant"]):
                rows = self.run(replace(task, variant=variant))
                if rows[0]["verdict"] != "unsupported":
                    return rows
            return [row | {"verdict": "unsupported", "reason": str(refusal)}]
        except Exception as error:
            self.broken = self.tier == "gpu" and not isinstance(error, (TypeError, ValueError))
            self.inputs = None  # nobody knows what it has done to them
            return [row | {"verdict": "fail", "reason": brief(error)}]

    def _call(self, row: dict, function, kind: str) -> list[dict]:
        inputs, adapter, case = self.inputs, self.adapters[kind], self.inputs.case
        specs = inputs.operator.outputs(case)
        arrays, arguments = inputs.call(kind)
        given = []
        if backends.accepts(function, "out"):
            given = [adapter.poisoned(*spec) for spec in specs.values()]
            arguments["out"] = given[0].array if len(given) == 1 else tuple(g.array for g in given)
        else:
            for spec in specs.values():
                adapter.poison_allocator(*spec)
        adapter.wait(())
        start = time.perf_counter()
        result = function(*arrays, **arguments)
        results = result if isinstance(result, (tuple, list)) else (result,)
        if given:
            # What counts is what was written there; an in-place function may return nothing.
            outs = tuple(g.array for g in given)
            if result is not None and (len(results) != len(outs) or any(r is not o for r, o in zip(results, outs))):
                raise ValueError("what was returned is not what was given as out; expected: out itself, or None")
            results = outs
        if len(results) != len(specs):
            raise ValueError(f"{len(results)} outputs were returned; expected: {', '.join(specs)}")
        for (name, (shape, dtype)), value in zip(specs.items(), results):
            if not adapter.is_array(value):
                raise TypeError(
                    f"{name} is a {type(value).__module__}.{type(value).__qualname__}; expected: an array of {kind}"
                )
            if tuple(value.shape) != shape or adapter.dtype(value) != dtype:
                found = f"shape {tuple(value.shape)} and dtype {adapter.dtype(value)}"
                raise ValueError(f"{name} has {found}; expected: {shape}, {dtype}")
        results = adapter.wait(results)
        row["seconds"] = round(time.perf_counter() - start, 6)

        reasons, judgements = [], {}
        if np.float32(2.0**-149) + np.float32(0) == 0:
            # Everything this process computes from here on would be computed that way, the reference too.
            reasons.append("the call leaves the processor flushing subnormal numbers to zero")
            self.broken = True
        for name, value in zip(specs, results):
            index = inputs.sample and inputs.sample[name]
            out = self._get(value, kind, index)
            judgements[name] = judge(out, inputs.expected[name])
            if unwritten := np.count_nonzero(out.view(f"u{out.itemsize}") == POISON[specs[name][1]]):
                reasons.append(f"{unwritten} of {out.size} elements of {name} were not written")
            if not judgements[name].ok:
                reasons.append(_worst(name, specs[name][0], out, inputs.expected[name], judgements[name], index))
        row |= _numbers(judgements)
        reasons += [spilt for name, g in zip(specs, given) if (spilt := self._spilt(name, g, kind, specs[name][1]))]
        if changed := inputs.changed(kind):
            reasons.append(changed)
        corrected = None
        if inputs.sample is not None and not reasons:
            reason, corrected = self._against_first(row, results)
            reasons += [reason] if reason else []
        if reasons:
            row |= _wrong(row, "; ".join(reasons))
        else:
            row["verdict"] = "pass"
        return [row, corrected] if corrected else [row]

    def _get(self, value, kind: str, index: np.ndarray | None) -> np.ndarray:
        """An output, or its elements at flat ``index``, as NumPy."""
        return (
            self.adapters[kind].get(value) if index is None else self.adapters["torch"].get(self._tensor(value), index)
        )

    def _tensor(self, value):
        """An array of any kind as a PyTorch tensor on the same memory."""
        torch = self.adapters["torch"].torch
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, np.ndarray):  # NumPy's own dlpack knows no bfloat16
            return torch.from_numpy(value.view(f"i{value.itemsize}")).view(getattr(torch, value.dtype.name))
        return torch.from_dlpack(value)

    def _spilt(self, name: str, given: Poisoned, kind: str, dtype: str) -> str | None:
        """What was written beside an output operand, or None."""
        if given.buffer is None:
            return None
        bits = poison_bits(GUARD, dtype)
        before, after = (
            np.flatnonzero(self.adapters[kind].get(band).view(bits.dtype) != bits)
            for band in (given.buffer[:GUARD], given.buffer[-GUARD:])
        )
        if before.size:
            return (
                f"{before.size} of {GUARD} elements before {name} were written, the nearest {GUARD - before[-1]} away"
            )
        if after.size:
            return (
                f"{after.size} of {GUARD} elements past the end of {name} were written, the nearest {after[0] + 1} away"
            )
        return None

    def _against_first(self, row: dict, results) -> tuple[str | None, dict | None]:
        """All elements of a sampled case against those of the first backend that passed it.

        Where they differ the reference decides: returns what is wrong with these results, or the first
        backend's row as it should have been.
        """
        inputs, tensors = self.inputs, [self._tensor(value) for value in results]
        if inputs.first is None:
            inputs.first = row, tensors
            return None, None
        first, kept = inputs.first
        torch = self.adapters["torch"].torch
        for name, value, other in zip(inputs.expected, tensors, kept):
            value, other = value.reshape(-1), other.reshape(-1)
            bits = {2: torch.int16, 4: torch.int32}[value.element_size()]
            differ = (value.view(bits) != other.view(bits)) & ~(value.isnan() & other.isnan())
            index = differ.nonzero()[:, 0]
            if not index.numel():
                continue
            if index.numel() > MOST_DIFFERING:
                # Where they lie furthest apart, in absolute terms and in relative ones.
                a, b = value[index].double(), other[index].double()
                gap = (a - b).abs().nan_to_num(nan=torch.inf)
                relative = (gap / torch.maximum(a.abs(), b.abs())).nan_to_num(nan=torch.inf)
                half = MOST_DIFFERING // 2
                index = index[torch.cat([gap.topk(half).indices, relative.topk(half).indices]).unique()]
            index = index.cpu().numpy()
            expected = inputs.operator.expect(inputs.case, inputs.host, {name: index})[name]
            for tensor, of in ((value, row), (other, first)):
                out = self.adapters["torch"].get(tensor, index)
                judgement = judge(out, expected)
                if not judgement.ok:
                    reason = _worst(name, tuple(tensor.shape), out, expected, judgement, index)
                    if of is row:
                        row |= _numbers({name: judgement})
                        return reason, None
                    inputs.first = row, tensors
                    return None, first | _numbers({name: judgement}) | _wrong(first, reason)
        return None, None


def _wrong(row: dict, reason: str) -> dict:
    """The verdict on a row that breaks the contract: only an implementation fails, others are inaccurate."""
    return {"verdict": "fail" if row["role"] == "implementation" else "inaccurate", "reason": reason}


def brief(error: Exception) -> str:
    """An exception in a line or three, with the place of the call that raised it; no paths of this machine."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if "Traceback (most recent call last):" in str(error):  # JAX's callbacks quote theirs
        lines = lines[-1:]
    if type(error).__name__ == "CompileError":  # before the first error compilers say how they came there
        lines = lines[next((i for i, line in enumerate(lines) if "error:" in line), 0) :]
    library, here = os.path.dirname(os.__file__), __file__  # Python's own, with site-packages below it
    frames = traceback.extract_tb(error.__traceback__)
    frames = [
        f for f in frames if not f.filename.startswith(("<frozen", library, here)) and "site-packages" not in f.filename
    ]
    where = Path(frames[-1].filename) if frames else None
    place = f" ({where.parent.name}/{where.name}:{frames[-1].lineno})" if where else ""
    return f"{type(error).__name__}: {shorten(' | '.join(line.strip() for line in lines[:3]))}{place}"


def shorten(text: str, most: int = 500) -> str:
    """The text, or its beginning where it is longer than a table bears."""
    return text if len(text) <= most else text[:most] + " ..."


def _numbers(judgements: dict[str, Judgement]) -> dict:
    """A row's figures of its outputs, the worst of them at top level."""
    outputs = {
        name: {
            "error_over_bound": "inf" if np.isinf(j.error_over_bound) else j.error_over_bound,
            "max_ulp": j.max_ulp,
            "bitwise_equal": j.bitwise_equal,
        }
        for name, j in judgements.items()
    }
    worst = max(judgements, key=lambda name: judgements[name].error_over_bound)
    ulps = [j.max_ulp for j in judgements.values()]
    return outputs[worst] | {
        "max_ulp": None if None in ulps else max(ulps),
        "bitwise_equal": all(j.bitwise_equal for j in judgements.values()),
        "outputs": outputs,
    }


def _worst(name: str, shape: tuple[int, ...], out, expected: Expected, judgement: Judgement, index) -> str:
    """Where an output is worst: the element, both values, the bound. index: the sample's flat indices or None."""
    i = judgement.worst
    place = ", ".join(map(str, np.unravel_index(i if index is None else index[i], shape)))
    reference = expected.value.reshape(-1)[i]
    rounded = round_once(np.array([reference]), expected.dtype)[0]
    return (
        f"{name}[{place}] is {float(out.reshape(-1)[i]):.9g}, the reference {reference:.9g}, "
        f"rounded {float(rounded):.9g}, bound {expected.bound.reshape(-1)[i]:.3g}"
    )
