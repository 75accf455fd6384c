"""Feeds identical inputs to every implementation of an operator and holds the results to one reference.

``python -m crosscheck`` prints the table; :func:`check` does the same for a function of yours.
"""

import os
from typing import Callable, Iterable


def check(
    fn: Callable,
    *,
    operator: str,
    cases: Iterable[str] | None = None,
    arrays: str = "torch",
    device: str = "auto",
) -> list[dict]:
    """Check ``fn(*inputs, **arguments)`` as an implementation of an operator, in this process.

    operator: ``"vector_add"`` and so on. cases: ids, by default all that suit the machine. arrays: what fn takes
    and returns: ``"torch"``, ``"cupy"`` (on a GPU), ``"jax"`` (whose outputs are ``jax.Ref`` where it is given any) or
    ``"numpy"`` (on a CPU). device: ``"auto"``, ``"gpu"`` or ``"cpu"``.
    If fn names a parameter ``out``, it is given a poisoned buffer between guard bands to write into, and returns that
    or nothing.
    Returns the rows of ``python -m crosscheck --json``, one a case.
    Raises ValueError for a name that is not known, or a GPU that is not there.
    """
    from crosscheck.arrays import TIERS
    from crosscheck.backends import Function
    from crosscheck.cases import CASES, OPERATORS
    from crosscheck.machine import find_gpu
    from crosscheck.runner import Runner, Task
    from reference.contract import among

    among("operator", operator, OPERATORS)
    if isinstance(cases, str):
        raise ValueError(f"cases is {cases!r}; accepted: a list of ids")
    gpu = find_gpu(device)
    if gpu is None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # or JAX complains at length of the GPU it does not find
    among("arrays", arrays, TIERS["gpu" if gpu else "cpu"])
    if cases is None:
        chosen = [c for c in CASES.values() if c.operator == operator and ("gpu" if gpu else "cpu") in c.sets]
    else:
        own = {name: c for name, c in CASES.items() if c.operator == operator}
        chosen = [own[among("case", name, own)] for name in cases]
    name = getattr(fn, "__name__", "fn")
    runner = Runner(gpu, Function(name, "implementation", (), call=fn, arrays=arrays))
    return [runner.run(Task(name, case))[0] for case in chosen]
