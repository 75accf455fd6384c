"""Faults put into the real kernels of matmul."""

import importlib.util
from pathlib import Path


def _faults(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FAULTS = _faults("matmul_pallas").PALLAS
