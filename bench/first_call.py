"""The first call of a process, with cold caches and with the caches that another process has left.

``python -m bench.first_call BACKEND VARIANT CASE`` is that process: it prints the seconds.
"""

import os
import subprocess
import sys
import tempfile
import time

# Where compiled kernels are kept.
CACHES = ("ROSETTA_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")


def seconds(backend: str, variant: str, case: str) -> dict[str, float | None]:
    """``cold``: in a process with empty caches; ``cached``: in the next one. None where the process failed."""
    with tempfile.TemporaryDirectory() as scratch:
        own = {name: os.path.join(scratch, name) for name in CACHES}
        command = [sys.executable, "-m", "bench.first_call", backend, variant, case]
        found = {}
        for name in ("cold", "cached"):
            done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
            words = done.stdout.split()
            found[name] = None if done.returncode or not words else float(words[-1])
        return found


def main(backend: str, variant: str, case: str) -> None:
    from crosscheck import backends
    from crosscheck.arrays import KINDS
    from crosscheck.cases import CASES, OPERATORS

    found, chosen = backends.find(backend), CASES[case]
    kind = found.kind("gpu")
    adapter, operator = KINDS[kind]("gpu"), OPERATORS[chosen.operator]
    arrays = {name: adapter.put(values) for name, values in operator.draw(chosen).items()}
    adapter.wait(list(arrays.values()))  # the device is awake, the inputs are there
    arguments, keywords = operator.call(chosen, arrays)
    start = time.perf_counter()
    function = found.function(chosen.operator, variant, "gpu")  # imports the implementation
    adapter.wait([function(*arguments, **keywords)])
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
