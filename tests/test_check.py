"""The check itself: right functions pass, and every way of being wrong that it knows is seen."""

import dataclasses
import functools

import numpy as np
import pytest

import crosscheck
from crosscheck.cases import CASES
from crosscheck.runner import Task
from crosscheck.workers import Workers, run_cases
from reference.contract import NotRun
from tests.doubles.right import vector_add as right

CASE = "vector_add-float32-1025"


def check(fn, cases=(CASE,)):
    return crosscheck.check(fn, operator="vector_add", cases=cases, arrays="numpy", device="cpu")


def test_right_passes_every_case():
    rows = crosscheck.check(right, operator="vector_add", arrays="numpy", device="cpu")
    assert {row["case"] for row in rows} == {
        c.id for c in CASES.values() if c.operator == "vector_add" and "cpu" in c.sets
    }
    assert all(row["verdict"] == "pass" and row["bitwise_equal"] for row in rows)


def zeros(x, y):
    return np.zeros_like(x)


def the_input(x, y):
    return x


def subtract(x, y):
    return x - y


def truncated(x, y):
    total = x.astype(np.float32) + y.astype(np.float32)
    return (total.view(np.uint32) >> 16 << 16).view(np.float32).astype(x.dtype)


def not_a_number(x, y):
    return np.where(np.arange(len(x)) == 7, np.nan, x + y).astype(x.dtype)


def one_not_written(x, y, out):
    np.add(x, y, out=out)
    out[512] = np.uint32(0x7FC5A5A5).view(np.float32)  # as it was
    return out


def past_the_end(x, y, out):
    np.add(x, y, out=out)
    out.base[out.base.size - 4096 + 2] = 0
    return out


def before_the_start(x, y, out):
    np.add(x, y, out=out)
    out.base[4095] = 0
    return out


def out_ignored(x, y, out=None):
    return x + y


def out_ruined(x, y, out):
    out[...] = 7
    return x + y


def unwritten_where_nan_is_due(x, y, out):
    total = right(x, y)
    nan = np.flatnonzero(np.isnan(total))[0]
    out[:nan], out[nan + 1 :] = total[:nan], total[nan + 1 :]


def input_changed(x, y):
    total = x + y
    y[3] += 1
    return total


def wrong_dtype(x, y):
    return x.astype(np.float64) + y


def wrong_shape(x, y):
    return (x + y)[:-1]


def two_results(x, y):
    return x + y, x


def a_word(x, y):
    return "sum"


def raises(x, y):
    raise RuntimeError("no such luck")


@pytest.mark.parametrize(
    "fn, case, reason",
    [
        (zeros, CASE, "out[0] is 0, the reference "),
        (the_input, CASE, "out[0] is "),
        (subtract, CASE, "bound 0"),
        (truncated, "vector_add-bfloat16-1025", "rounded "),
        (not_a_number, CASE, "out[7] is nan"),
        (one_not_written, CASE, "1 of 1025 elements of out were not written"),
        (past_the_end, CASE, "1 of 4096 elements past the end of out were written, the nearest 3 away"),
        (before_the_start, CASE, "1 of 4096 elements before out were written, the nearest 1 away"),
        (input_changed, CASE, "the call wrote to its input y"),
        (wrong_dtype, CASE, "out has shape (1025,) and dtype float64; expected: (1025,), float32"),
        (wrong_shape, CASE, "out has shape (1024,) and dtype float32; expected: (1025,), float32"),
        (out_ignored, CASE, "what was returned is not what was given as out; expected: out itself, or None"),
        (out_ruined, CASE, "what was returned is not what was given as out; expected: out itself, or None"),
        (unwritten_where_nan_is_due, "vector_add-float32-169-special", "1 of 169 elements of out were not written"),
        (two_results, CASE, "2 outputs were returned; expected: out"),
        (a_word, CASE, "out is a builtins.str; expected: an array of numpy"),
        (raises, CASE, "RuntimeError: no such luck (tests/test_check.py:"),
    ],
)
def test_wrong_fails(fn, case, reason):
    (row,) = check(fn, [case])
    assert row["verdict"] == "fail"
    assert reason in row["reason"]


def in_place(x, y, out):
    np.add(x, y, out=out)


def any_keyword(x, y, **rest):
    assert not rest
    return x + y


@pytest.mark.parametrize("fn", [in_place, any_keyword, functools.partial(right), lambda x, y: right(x, y)])
def test_right_functions_of_every_kind_pass(fn):
    (row,) = check(fn)
    assert row["verdict"] == "pass", row["reason"]


def test_functions_that_say_nothing_of_themselves_pass():
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    for fn, arrays in ((torch.add, "torch"), (torch.Tensor.add, "torch"), (jax.jit(lambda x, y: x + y), "jax")):
        rows = crosscheck.check(fn, operator="vector_add", arrays=arrays, device="cpu")
        wrong = [row for row in rows if row["verdict"] not in ("pass", "not run")]
        assert not wrong, wrong[0]
        assert any(row["verdict"] == "pass" for row in rows)


def test_a_name_is_only_a_name():
    def torch(x, y):
        return x

    torch.__name__ = "torch"
    (row,) = check(torch)
    assert (row["backend"], row["role"], row["verdict"]) == ("torch", "implementation", "fail")


def test_a_call_that_raises_may_have_spoilt_its_inputs():
    def spoils(x, y):
        y += 1
        raise RuntimeError("now")

    calls = iter((spoils, right))
    rows = check(lambda x, y: next(calls)(x, y), [CASE, CASE])
    assert [row["verdict"] for row in rows] == ["fail", "pass"]


def test_jax_does_not_get_the_very_inputs():
    pytest.importorskip("jax")
    torch = pytest.importorskip("torch")

    def changes(x, y):
        total = (x + y).block_until_ready()
        torch.from_dlpack(y)[3] += 1
        return total

    rows = crosscheck.check(changes, operator="vector_add", cases=[CASE] * 4, arrays="jax", device="cpu")
    assert {row["reason"] for row in rows} == {"the call wrote to its input y"}


def test_what_a_machine_cannot_run_is_not_run():
    def cannot(x, y):
        raise NotRun("it has inline PTX")

    (row,) = check(cannot)
    assert (row["verdict"], row["reason"]) == ("not run", "it has inline PTX")


def test_one_backend_cannot_spoil_the_inputs_of_the_next():
    first, second = check(input_changed, [CASE, CASE])
    assert first["inputs_sha256"] == second["inputs_sha256"]
    assert first["error_over_bound"] == second["error_over_bound"] == 0


@pytest.mark.parametrize("distribution", ("zeros", "constant"))
def test_zeros_and_constants_are_weak_inputs_and_not_the_only_ones(distribution):
    """Why no operator is checked on them alone: a wrong function can pass."""
    (row,) = check(lambda x, y: y + y, [f"vector_add-float32-1031-{distribution}"])
    assert row["verdict"] == "pass"
    assert check(lambda x, y: y + y)[0]["verdict"] == "fail"


def test_inputs_are_the_same_bytes_everywhere():
    (row,) = check(right)
    assert row["inputs_sha256"] == "5604084001316f1c14a64a0ec18824dffe66c45e0a319d3f513744e8f9eee7ba"


def test_refused_names():
    for arguments, message in (
        ({"operator": "vectoradd"}, "operator is 'vectoradd'; accepted: "),
        ({"arrays": "list"}, "arrays is 'list'; accepted: numpy, torch or jax"),
        ({"arrays": "cupy"}, "arrays is 'cupy'; accepted: numpy, torch or jax"),
        ({"device": "tpu"}, "device is 'tpu'; accepted: auto, gpu or cpu"),
        ({"cases": CASE}, f"cases is '{CASE}'; accepted: a list of ids"),
        ({"cases": ["vector_add-float32-1026"]}, "case is 'vector_add-float32-1026'; accepted: "),
    ):
        with pytest.raises(ValueError, match=message):
            crosscheck.check(right, **{"operator": "vector_add", "arrays": "numpy", "device": "cpu"} | arguments)


# Big cases: the reference answers for a sample, and the backends for each other


@pytest.fixture
def sampled(monkeypatch):
    """A runner that holds every other element of vector add to the reference."""
    pytest.importorskip("torch")
    from crosscheck import backends, runner

    operator = dataclasses.replace(
        runner.OPERATORS["vector_add"], sample=lambda case: {"out": np.arange(0, case.shape["n"], 2)}
    )
    monkeypatch.setattr(runner, "OPERATORS", {"vector_add": operator})
    running = runner.Runner(None)

    def run(name, fn, case=CASE):
        running.own = backends.Function(name, "implementation", (), call=fn, arrays="numpy")
        return running.run(Task(name, CASES[case]))

    return run


def off_the_sample(x, y):
    total = right(x, y)
    total[501] = 7
    return total


def test_a_sample_sees_what_is_in_it(sampled):
    (row,) = sampled("zeros", zeros)
    assert row["verdict"] == "fail" and row["reason"].startswith("out[0] is 0, ")


@pytest.mark.parametrize("case", (CASE, "vector_add-bfloat16-1025", "vector_add-float32-169-special"))
def test_who_is_alike_passes(sampled, case):
    assert [sampled(name, right, case)[0]["verdict"] for name in ("one", "another")] == ["pass", "pass"]


def test_what_is_off_the_sample_is_seen_beside_a_right_one(sampled):
    assert sampled("right", right)[0]["verdict"] == "pass"
    (row,) = sampled("wrong", off_the_sample)
    assert row["verdict"] == "fail" and row["reason"].startswith("out[501] is 7, the reference ")


def test_a_right_one_corrects_what_has_passed_before_it(sampled):
    assert sampled("wrong", off_the_sample)[0]["verdict"] == "pass"  # nobody to compare with
    row, corrected = sampled("right", right)
    assert row["verdict"] == "pass"
    assert (corrected["backend"], corrected["verdict"]) == ("wrong", "fail")
    assert corrected["reason"].startswith("out[501] is 7, the reference ")
    assert [sampled("again", off_the_sample)[0]["verdict"]] == ["fail"]  # now it is the right one that counts


# Processes


def test_a_crash_costs_its_own_row():
    with Workers(None) as workers:
        rows = [
            workers.run(Task("tests.doubles.crash", CASES[f"vector_add-float32-{n}"]))[0] for n in (1023, 1025, 2047)
        ]
    assert [row["verdict"] for row in rows] == ["pass", "fail", "pass"]
    assert rows[1]["reason"] == "the process died (SIGABRT): Fatal Python error: Aborted"


def test_a_crash_that_comes_late_is_its_own():
    with Workers(None) as workers:
        for n in (1023, 1025, 2047):
            workers.run(Task("tests.doubles.late", CASES[f"vector_add-float32-{n}"]))
            (row,) = workers.run(Task("cuda", CASES[f"vector_add-float32-{n}"]))
            assert row["verdict"] == "pass", row["reason"]


def test_whoever_dies_twice_is_not_tried_again():
    with Workers(None) as workers:
        rows = [workers.run(Task("tests.doubles.crash", CASES[CASE]))[0] for _ in range(3)]
    assert rows[1]["reason"].startswith("the process died")
    assert rows[2]["reason"] == "not tried after its process died, or did not answer, twice in a row"


def test_flushing_subnormals_is_seen_and_stays_with_whoever_does_it():
    pytest.importorskip("torch")
    with Workers(None) as workers:
        case = CASES["vector_add-float32-1031-subnormal"]
        rows = [workers.run(Task(name, case))[0] for name in ("tests.doubles.flushes", "cuda")]
    assert "the call leaves the processor flushing subnormal numbers to zero" in rows[0]["reason"]
    assert rows[1]["verdict"] == "pass", rows[1]["reason"]


def test_deprecated_api_in_our_code_is_a_failure():
    with Workers(None) as workers:
        rows = [
            workers.run(Task("tests.doubles.deprecated", CASES[f"vector_add-float32-{n}"]))[0] for n in (1023, 1025)
        ]
    assert [row["verdict"] for row in rows] == ["pass", "fail"]
    assert rows[1]["reason"].startswith("DeprecationWarning: do not")


def test_a_hang_is_ended():
    with Workers(None, timeout=4) as workers:
        (row,) = workers.run(Task("tests.doubles.hang", CASES[CASE]))
        assert (row["verdict"], row["reason"]) == ("fail", "no answer within 4 s")
        assert workers.run(Task("tests.doubles.right", CASES[CASE]))[0]["verdict"] == "pass"


def test_a_race_in_pallas_is_a_failure(pytestconfig):
    """Two warpgroups and one scratch buffer without a barrier between them."""
    pytest.importorskip("jax")
    if pytestconfig.tier != "cpu":
        pytest.skip("the race detector is the interpreter's")
    import functools

    import jax
    from jax import lax
    from jax.experimental.pallas import mosaic_gpu as plgpu

    from crosscheck import backends

    def kernel(x_ref, out_ref, scratch):
        thread = lax.axis_index("warpgroup")
        scratch[...] = x_ref[...] + thread
        out_ref[thread] = scratch[...]

    def racy(x, variant, interpret):
        run = plgpu.kernel(
            kernel,
            out_type=jax.ShapeDtypeStruct((2, 128), x.dtype),
            scratch_types=[plgpu.SMEM((128,), x.dtype)],
            num_threads=2,
            thread_name="warpgroup",
            interpret=interpret,
        )
        return run(x)

    pallas = backends.find("pallas")
    watched = backends.watch_races(functools.partial(racy, variant=None, **pallas.cpu_arguments()))
    with pytest.raises(backends.Race, match="RACE DETECTED"):
        watched(jax.numpy.ones(128))


def test_a_compiler_s_error_is_what_is_told():
    from crosscheck.runner import brief
    from cupy_impl.launches import Kernel, compile_error

    log = "In file included from a.h:1:\na.cu: In function 'void f()':\na.cu:3:5: error: expected ';'\n    3 | x\n"
    assert brief(compile_error(Kernel("a.cu", "f"), "g++", (), log)).startswith(
        "CompileError: a.cu:3:5: error: expected ';' | 3 | x"
    )


def test_cases_run_at_once_come_in_their_order():
    tasks = [[Task("torch", CASES[f"vector_add-{dtype}-1025"])] for dtype in ("bfloat16", "float32", "float16")]
    with Workers(None) as first, Workers(None) as second:
        rows = [row for own in run_cases([first, second], tasks) for row in own]
    assert [(row["dtype"], row["verdict"]) for row in rows] == [
        ("bfloat16", "pass"), ("float32", "pass"), ("float16", "pass"),
    ]  # fmt: skip
