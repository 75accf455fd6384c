"""Faults put into the real matmul kernels; each has to come out of the check as a ``fail``."""

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("faults_matmul_triton", Path(__file__).with_name("matmul_triton.py"))
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)

FAULTS = _MODULE.TRITON
