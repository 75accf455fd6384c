"""Known faults in the real kernels are caught, and a fault that no longer fits its source is noticed."""

import pytest

from crosscheck import backends, faults
from crosscheck.cases import CASES, OPERATORS
from crosscheck.faults import Fault

ALL = [(operator, fault) for operator in OPERATORS for fault in faults.load(operator)]


@pytest.mark.parametrize("operator, fault", ALL, ids=[f"{op}-{f.backend}-{f.name}".replace(" ", "_") for op, f in ALL])
def test_faults_fit_their_sources(operator, fault, tmp_path):
    copy = tmp_path / fault.file
    copy.parent.mkdir(parents=True)
    copy.write_text((faults.ROOT / fault.file).read_text())
    faults.apply(fault, tmp_path)
    assert fault.replacement in copy.read_text()
    assert {CASES[case].operator for case in fault.cases} == {operator}
    assert set(fault.tiers) <= {"cpu", "gpu"} and set(fault.by) <= {*faults.CATCHERS.values(), "error"}


def test_three_faults_or_more_of_each_implementation_show_on_each_tier():
    for tier in ("cpu", "gpu"):
        for name in backends.IMPLEMENTATIONS:
            for operator in filter(backends.find(name).has, OPERATORS):
                own = [f for op, f in ALL if op == operator and f.backend == name and tier in f.tiers]
                assert len(own) >= 3, (tier, name, operator)


@pytest.mark.parametrize("text, times", [("no such text", 0), ("i", "many")])
def test_a_stale_fault_is_an_error(tmp_path, text, times):
    (tmp_path / "kernel.cu").write_text("int i = 0; ++i;\n")
    with pytest.raises(faults.StaleFault, match="a fault needs it once"):
        faults.apply(Fault("cuda", "stale", "kernel.cu", text, "", (), ()), tmp_path)


def test_one_of_each_implementation_is_caught(monkeypatch, pytestconfig):
    """The first that shows here of two operators; all of them take many minutes: python -m crosscheck faults."""
    tier, every = pytestconfig.tier, faults.load

    def first(operator):
        shown = [f for f in every(operator) if tier in f.tiers]
        return [next(f for f in shown if f.backend == name) for name in dict.fromkeys(f.backend for f in shown)]

    monkeypatch.setattr(faults, "load", first)
    for row in faults.check(["vector_add", "attention"], list(backends.IMPLEMENTATIONS), tier):
        absent = backends.find(row["backend"]).unavailable(tier)
        assert row["verdict"] == "fail" or absent, row


def row(verdict="fail", reason="", error=None):
    return {"verdict": verdict, "reason": reason, "error_over_bound": error, "case": "a"}


@pytest.mark.parametrize(
    "reason, error, by",
    [
        ("3 of 1025 elements of out were not written", "inf", "unwritten elements"),
        ("1 of 4096 elements past the end of out were written, the nearest 1 away", 0, "guard bands"),
        ("the call wrote to its input x", 0, "inputs compared"),
        ("no answer within 300 s", None, "timeout"),
        ("Race: RACE DETECTED", None, "race detector"),
        ("the process died (SIGSEGV)", None, "crash"),
        ("out[0] is 1, the reference 2", 3.0, "bound"),
        ("IndexError: Out-of-bounds read", None, "interpreter"),
        ("KernelFault: softmax: block (0, 0, 0)", None, "host build"),
        ("CompileError: cuda/softmax.cu: g++ could not compile it", None, "error"),
    ],
)
def test_what_caught_it(reason, error, by):
    assert faults.caught_by([row("pass"), row(reason=reason, error=error)])["caught_by"] == by


@pytest.mark.parametrize("by, verdict", [(("bound",), "pass"), (("guard bands", "crash"), "fail")])
def test_a_fault_caught_by_accident_is_missed(monkeypatch, by, verdict):
    fault = Fault("cuda", "any", "cuda/vector_add.cu", "", "", by, ("a",))
    monkeypatch.setattr(faults, "run", lambda *_: [row("fail", "the process died (SIGSEGV)")])
    assert faults.judge("vector_add", fault, "cpu", {fault.owner: None}, "")["verdict"] == verdict


def test_nothing_caught_it():
    assert faults.caught_by([row("pass"), row("not run")]) is None


def test_a_control_that_fails_is_no_catch(monkeypatch):
    """A check that fails without the fault would catch anything."""
    fault = Fault("cuda", "any", "cuda/vector_add.cu", "", "", ("bound",), ("a",))
    monkeypatch.setattr(faults, "run", lambda *_: [row("fail", "broken anyway")])
    reason = faults.control(fault.owner, [fault], "cpu", "")
    assert reason == "without a fault a is fail: broken anyway"
    assert faults.judge("vector_add", fault, "cpu", {fault.owner: reason}, "")["verdict"] == "not run"
