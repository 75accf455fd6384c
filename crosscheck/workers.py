"""Processes that run the backends, so that one that crashes or hangs costs its own row and no other.

On a GPU one process serves all frameworks; on a CPU those that need other environment variables get one each.
Several cases run beside each other, each in processes of its own.
"""

import faulthandler
import multiprocessing
import os
import queue
import signal
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, Sequence

from crosscheck import backends
from crosscheck.machine import Gpu
from crosscheck.runner import Runner, Task, new_row, shorten

# Seconds a row may take; a kernel that waits for itself takes for ever. On a GPU drawing a big case's inputs counts.
TIMEOUTS = {"cpu": 120.0, "gpu": 300.0}

# Else JAX takes most of the memory; and on a GPU Triton compiles, whatever the shell says.
GPU_ENVIRONMENT = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("TRITON_INTERPRET", "0"))

AT_ONCE = min(8, os.cpu_count() or 1)  # cases that run beside each other, where memory is no question
CASES_EACH = 4  # fewer are not worth another process, which takes seconds to import the frameworks

_STARTING = threading.Lock()  # a process inherits the environment, which is one for all threads


def _serve(connection, log: str, gpu: Gpu | None) -> None:
    # What frameworks and kernels print goes to a file, whose end is a crashed process's last words.
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # Deprecated API in our own code is an error, in a stranger's module or a framework it is not.
    warnings.filterwarnings(
        "error", category=DeprecationWarning, module="(cupy|triton|pallas)_impl|crosscheck|reference"
    )
    runner = Runner(gpu)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if isinstance(request, Task):
            connection.send((runner.run(request), runner.broken))
        else:
            try:
                connection.send((backends.find(request[0]).variants(request[1]), False))
            except Exception:
                return
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
        with _STARTING:
            saved = dict(os.environ)
            os.environ.update(environment)
            try:
                self.process.start()
            finally:
                os.environ.clear()
                os.environ.update(saved)
        child.close()

    def last_words(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 65536))
            text = file.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        return shorten(" | ".join(fatal or lines[-3:]))

    def stop(self) -> None:
        self.connection.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.log.unlink(missing_ok=True)


class Workers:
    """Makes rows in processes of their own. Use as a context manager."""

    def __init__(self, gpu: Gpu | None, timeout: float | None = None):
        """gpu: where to run, None for the CPU. timeout: seconds a row may take, by default those of TIMEOUTS."""
        self.gpu, self.timeout = gpu, timeout or TIMEOUTS["gpu" if gpu else "cpu"]
        self._workers: dict[tuple, _Worker] = {}
        self._deaths: dict[str, int] = {}  # of a backend's process, one after the other

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self._workers.values():
            worker.stop()
        self._workers.clear()

    def kill(self) -> None:
        """End the processes, whatever they are at."""
        for worker in list(self._workers.values()):
            worker.process.kill()

    def _worker(self, name: str) -> tuple[tuple, _Worker]:
        backend = backends.find(name)
        environment = GPU_ENVIRONMENT if self.gpu else backend.cpu_environment
        # A stranger gets a process of its own: what it leaves behind is nobody else's.
        key = environment, name if name not in backends.BACKENDS else ""
        if key not in self._workers:
            self._workers[key] = _Worker(environment, self.gpu)
        return key, self._workers[key]

    def variants(self, backend: str, operator: str) -> list[str]:
        """Names of the variants of an operator that a backend which can run here has, [] where it fails to say."""
        key, worker = self._worker(backend)
        try:
            worker.connection.send((backend, operator))
            return list(worker.connection.recv()[0])
        except (EOFError, OSError):
            self._workers.pop(key).stop()
            return []

    def run(self, task: Task) -> list[dict]:
        """Runner.run in the backend's process; a process that dies or does not answer is a ``fail``.

        After two deaths in a row the backend's further rows are failed unrun.
        """
        if self._deaths.get(task.backend, 0) >= 2:
            reason = "not tried after its process died, or did not answer, twice in a row"
            return [new_row(task, backends.find(task.backend), self.gpu) | {"verdict": "fail", "reason": reason}]
        key, worker = self._worker(task.backend)
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
        self._deaths[task.backend] = 0 if reason is None else self._deaths.get(task.backend, 0) + 1
        if reason is not None:
            rows = [new_row(task, backends.find(task.backend), self.gpu) | {"verdict": "fail", "reason": reason}]
        if reason is not None or broken:
            self._workers.pop(key).stop()
        return rows


def run_cases(team: Sequence[Workers], cases: Sequence[Sequence[Task]]) -> Iterator[list[dict]]:
    """The rows of each case's tasks, in the order of the cases; as many cases run at once as the team has members."""
    idle, stopped = queue.SimpleQueue(), threading.Event()
    for workers in team:
        idle.put(workers)

    def run(tasks: Sequence[Task]) -> list[dict]:
        workers = idle.get()
        try:
            return [row for task in tasks if not stopped.is_set() for row in workers.run(task)]
        finally:
            idle.put(workers)

    with ThreadPoolExecutor(len(team)) as pool:
        try:
            yield from pool.map(run, cases)
        except BaseException:
            stopped.set()
            for workers in team:
                workers.kill()  # else the rows they are at would be waited for
            raise
