"""Faults put into the real kernels of matmul; each has to come out of the check as a ``fail``."""

import importlib.util
from pathlib import Path

from crosscheck.faults import Fault


def part(name: str, faults: str) -> tuple[Fault, ...]:
    """Faults that stand in a file beside this one."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, faults)


FAULTS = (*part("matmul_hopper", "HOPPER_FAULTS"), *part("matmul_triton", "TRITON"), *part("matmul_pallas", "PALLAS"))
