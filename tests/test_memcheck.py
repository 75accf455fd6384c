"""The CUDA kernels under compute-sanitizer's memcheck, and memcheck itself shown an overrun."""

import shutil
import subprocess
import sys

import pytest

from crosscheck import faults
from crosscheck.cases import CASES

# Without CuPy's pool every array is an allocation of its own, whose end memcheck knows.
CODE = """
import importlib, sys
import cupy
from crosscheck.cases import CASES, OPERATORS

cupy.cuda.set_allocator(None)
for case in map(CASES.get, sys.argv[1:]):
    operator = OPERATORS[case.operator]
    function = getattr(importlib.import_module(f"cupy_impl.{operator.module}"), operator.name)
    arrays, arguments = operator.call(case, {name: cupy.asarray(values) for name, values in operator.draw(case).items()})
    function(*arrays, **arguments)
    cupy.cuda.runtime.deviceSynchronize()
"""


def memcheck(root, cases):
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", CODE, *cases]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if "Device not supported" in done.stdout:
        pytest.skip("compute-sanitizer does not support this device")
    return done


@pytest.fixture(autouse=True)
def sanitizer(pytestconfig):
    if pytestconfig.tier != "gpu":
        pytest.skip("compute-sanitizer needs a GPU")
    if not shutil.which("compute-sanitizer"):
        pytest.skip("compute-sanitizer is not on PATH")


def test_cuda_is_clean():
    cases = [
        c.id
        for c in CASES.values()
        if c.operator == "vector_add" and c.distribution == "normal" and 0 < c.shape["n"] < 5000
    ]
    done = memcheck(faults.ROOT, cases)
    assert done.returncode == 0 and "ERROR SUMMARY: 0 errors" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


def test_an_overrun_is_seen(tmp_path):
    (fault,) = (f for f in faults.load("vector_add") if (f.backend, f.name) == ("cuda", "tail unmasked"))
    for package in faults.PACKAGES:
        shutil.copytree(faults.ROOT / package, tmp_path / package)
    faults.apply(fault, tmp_path)
    done = memcheck(tmp_path, fault.cases)
    assert done.returncode == 9 and "Invalid __global__" in done.stdout, done.stdout[-2000:]
