"""Which records on the device belong to which call."""

import pytest

from bench.device_time import MARK, main, spans


def test_a_call_is_what_lies_between_two_marks():
    mark = f"void kernel<{MARK}<float>>"
    records = [
        ("left over from before", 0, 90),
        (mark, 100, 200),
        ("a", 1000, 3000),
        ("b", 2500, 5000),
        (mark, 6000, 6100),
        ("Memset (Device)", 6200, 6300),
        ("c", 7000, 7500),
    ]
    assert spans(records[::-1]) == [4.0, 1.3]


def test_a_call_without_a_record_is_an_error():
    with pytest.raises(RuntimeError, match="1 of 2 calls left no record on the device"):
        spans([(MARK, 0, 1), (MARK, 2, 3), ("a", 4, 5)])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--case", "vector_add"], "--case is 'vector_add'; accepted: an id that python -m crosscheck --list prints"),
        ([], "CUDA shows no GPU here; accepted: a machine with one"),
    ],
)
def test_refusals(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr("crosscheck.machine.gpu", lambda: None)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
