"""What machine this is, found without importing a framework."""

import ctypes
import importlib.metadata
import platform
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from reference.contract import among

PACKAGES = (
    "numpy",
    "ml_dtypes",
    "torch",
    "triton",
    "jax",
    "jaxlib",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "cuda-bindings",
    "liger-kernel",
    "quack-kernels",
    "flash-attn-4",
)


class Gpu(NamedTuple):
    """The first GPU that CUDA shows: its name without the vendor, its architecture (``"sm_90"``), the driver's CUDA."""

    name: str
    arch: str
    cuda: str


def gpu() -> Gpu | None:
    """The GPU that the checks would use, or None."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, device, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    name = ctypes.create_string_buffer(128)
    numbers = [ctypes.c_int(), ctypes.c_int()]
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetName(name, len(name), device)
    for attribute, number in zip((75, 76), numbers):  # compute capability, major and minor
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    major, minor = divmod(version.value // 10, 100)
    arch = f"sm_{numbers[0].value}{numbers[1].value}"
    return Gpu(name.value.decode().removeprefix("NVIDIA "), arch, f"{major}.{minor}")


def find_gpu(device: str) -> Gpu | None:
    """Where to run for ``"auto"``, ``"gpu"`` or ``"cpu"``: a GPU, or None for the CPU.

    Raises ValueError for another word, or for a GPU asked for and not there.
    """
    among("device", device, ("auto", "gpu", "cpu"))
    found = None if device == "cpu" else gpu()
    if device == "gpu" and found is None:
        raise ValueError("device is 'gpu' and CUDA shows none here; accepted: auto or cpu")
    return found


def environment(found: Gpu | None) -> dict:
    """The record that result files carry: versions, GPU, driver, date. found: the GPU used, None on a CPU."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    driver = None
    if found:
        text = Path("/proc/driver/nvidia/version")
        match = re.search(r"(\d+\.\d+(?:\.\d+)?)\s", text.read_text()) if text.exists() else None
        driver = match and match[1]
    return {
        "device": "gpu" if found else "cpu",
        "gpu": found and found.name,
        "arch": found and found.arch,
        "driver": driver,
        "cuda": found and found.cuda,
        "python": platform.python_version(),
        "packages": versions,
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }
