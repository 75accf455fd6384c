"""Processes that run the backends, so that one that crashes or hangs costs its own row and no other.

On a GPU one process serves all frameworks; on a CPU those that need other environment variables get one each.
"""

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import warnings
from pathlib import Path

from crosscheck import backends
from crosscheck.machine import Gpu
from crosscheck.runner import Runner, Task, new_row

TIMEOUT = 300.0  # seconds a row may take; a kernel that waits for itself takes for ever

# Else JAX takes most of the memory; and on a GPU Triton compiles, whatever the shell says.
_GPU_ENVIRONMENT = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("TRITON_INTERPRET", "0"))


def _serve(connection, log: str, gpu: Gpu | None) -> None:
    # What frameworks and kernels print goes to a file, whose end is a crashed process's last words.
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # Deprecated API in our own code is an error, in a stranger's module or a framework it is not.
    warnings.filterwarnings("error", category=DeprecationWarning, module="(cupy|triton|pallas)_impl|crosscheck|reference")
    runner = Runner(gpu)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if isinstance(request, Task):
            connection.send((runner.run(request), runner.broken))
        else:
            connection.send((backends.find(request[0]).variants(request[1]), False))
        if runner.broken:
            return


class _Worker:
    def __init__(self, environment: tuple[tuple[str, str], ...], gpu: Gpu | None):
        file, name = tempfile.mkstemp(prefix="crosscheck-", suffix=".log")
        os.close(file)
        self.log = Path(name)
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, name, gpu), daemon=True)
        saved = dict(os.environ)
        os.environ.update(environment)
        try:
            self.process.start()
        finally:
            os.environ.clear()
            os.environ.update(saved)
        child.close()

    def last_words(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        return " | ".join(fatal or lines[-3:])

    def stop(self) -> None:
        self.connection.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.log.unlink(missing_ok=True)


class Workers:
    """Makes rows in processes of their own. Use as a context manager."""

    def __init__(self, gpu: Gpu | None, timeout: float = TIMEOUT):
        """gpu: where to run, None for the CPU. timeout: seconds a row may take."""
        self.gpu, self.timeout = gpu, timeout
        self._workers: dict[tuple, _Worker] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self._workers.values():
            worker.stop()
        self._workers.clear()

    def _worker(self, backend: str) -> tuple[tuple, _Worker]:
        environment = _GPU_ENVIRONMENT if self.gpu else backends.find(backend).cpu_environment
        if environment not in self._workers:
            self._workers[environment] = _Worker(environment, self.gpu)
        return environment, self._workers[environment]

    def variants(self, backend: str, operator: str) -> list[str]:
        """Names of the variants of an operator that a backend which can run here has."""
        _, worker = self._worker(backend)
        worker.connection.send((backend, operator))
        return list(worker.connection.recv()[0])

    def run(self, task: Task) -> list[dict]:
        """Runner.run in the backend's process; a process that dies or does not answer is a ``fail``."""
        environment, worker = self._worker(task.backend)
        reason = None
        try:
            worker.connection.send(task)
            if worker.connection.poll(self.timeout):
                rows, broken = worker.connection.recv()
            else:
                reason = f"no answer within {self.timeout:.0f} s"
                worker.process.kill()
        except (EOFError, OSError):
            worker.process.join(timeout=5)
            code = worker.process.exitcode
            how = signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"
            words = worker.last_words()
            reason = f"the process died ({how})" + (f": {words}" if words else "")
        if reason is not None:
            rows, broken = [new_row(task, self.gpu) | {"verdict": "fail", "reason": reason}], True
        if broken:
            self._workers.pop(environment).stop()
        return rows
