"""Options and what the tests of several operators share."""

import os

import pytest

from crosscheck import backends, machine
from crosscheck.cases import CASES
from crosscheck.runner import Task
from crosscheck.workers import Workers


def pytest_addoption(parser):
    group = parser.getgroup("rosetta kernels")
    group.addoption("--device", default="auto", help="auto, gpu or cpu: where kernels run")
    group.addoption("--require", default="", metavar="NAME,...", help="backends whose absence is a failure")


def pytest_configure(config):
    try:
        config.gpu = machine.find_gpu(config.getoption("--device"))
        for name in filter(None, config.getoption("--require").split(",")):
            machine.among("--require", name, backends.IMPLEMENTATIONS)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.tier = "gpu" if config.gpu else "cpu"
    # Before any test module imports a framework.
    if config.gpu is None:
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TRITON_INTERPRET": "1"}
    else:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


def pytest_generate_tests(metafunc):
    """``agreement`` gives a test of an operator's module every task of it: all variants of all implementations."""
    if "agreement" not in metafunc.fixturenames:
        return
    operators = metafunc.module.OPERATORS
    tasks, ids = [], []
    for case in CASES.values():
        if case.operator in operators and metafunc.config.tier in case.sets:
            for name in backends.IMPLEMENTATIONS:
                backend = backends.find(name)
                absent = backend.unavailable(metafunc.config.tier)
                for variant in [None] if absent else backend.variants(case.operator):
                    tasks.append(Task(name, case, variant))
                    ids.append(f"{name}.{variant or 'absent'}-{case.id}")
    metafunc.parametrize("agreement", tasks, ids=ids)


@pytest.fixture(scope="session")
def workers(pytestconfig):
    with Workers(pytestconfig.gpu) as running:
        yield running


@pytest.fixture
def passes(workers, pytestconfig):
    """A function that runs a task: passes it, or skips or fails the test with the row's reason."""

    def run(task: Task) -> None:
        required = pytestconfig.getoption("--require").split(",")
        row, *corrected = workers.run(task)
        absent = backends.find(task.backend).unavailable(pytestconfig.tier)
        assert not (absent and task.backend in required), f"{task.backend} is required: {absent}"
        if row["verdict"] in ("not run", "unsupported"):
            pytest.skip(f"{row['verdict']}: {row['reason']}")
        assert row["verdict"] == "pass", row["reason"]
        assert not corrected, corrected[0]["backend"] + ": " + corrected[0]["reason"]

    return run
