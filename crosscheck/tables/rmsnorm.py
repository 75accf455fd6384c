"""Cases of RMSNorm and of its backward pass."""

from typing import Iterator

import numpy as np

from crosscheck.case import Case, Operator, at_flat, flat, pairwise, some, whole
from crosscheck.distributions import draw
from crosscheck.tables.softmax import BENCH, ROWS, WIDTHS
from reference.contract import ArrayInfo, scalar
from reference.rmsnorm import DTYPES, expect, expect_backward, outputs

EPS = 1e-6
DISTRIBUTIONS = ("normal", "tiny", "one_sided", "outliers", "large", "constant", "zeros", "nan", "plus_inf")
SMALL = ((3, 1025), (5, 129), (3, 257), (2, 1), (4, 128), (3, 2049), (3, 33), (2, 1000), (1, 127))


def _case(
    dtype, rows, cols, distribution="normal", residual=False, rstd=False, wide_weight=False, sets=("gpu",), seed=0
):
    arguments = {"eps": EPS}
    parts = [f"rmsnorm-{dtype}-{rows}x{cols}"]
    if residual:
        arguments["residual"] = True
        parts.append("residual")
    if rstd:
        arguments["return_rstd"] = True
        parts.append("rstd")
    if wide_weight and dtype != "float32":
        arguments["weight"] = "float32"
        parts.append("weight32")
    if distribution != "normal":
        parts.append(distribution)
    return Case(
        "-".join(parts), "rmsnorm", {"rows": rows, "cols": cols}, dtype, arguments, distribution, seed, frozenset(sets)
    )


def _backward_case(dtype, rows, cols, distribution="normal", wide_weight=False, sets=("gpu",), seed=0):
    wide = wide_weight and dtype != "float32"
    name = f"rmsnorm_backward-{dtype}-{rows}x{cols}" + "-weight32" * wide
    if distribution != "normal":
        name += f"-{distribution}"
    arguments = {"weight": "float32"} if wide else {}
    return Case(
        name, "rmsnorm_backward", {"rows": rows, "cols": cols}, dtype, arguments, distribution, seed, frozenset(sets)
    )


def cases() -> Iterator[Case]:
    for offset, dtype in enumerate(DTYPES):
        for i, distribution in enumerate(DISTRIBUTIONS[: 9 if dtype == "float32" else 7]):
            rows, cols = SMALL[(i + 4 * offset) % len(SMALL)]
            residual, rstd, wide = (i + offset) % 2 == 1, i % 3 != 1, i % 4 == 1
            yield _case(dtype, rows, cols, distribution, residual, rstd, wide, ("cpu", "gpu"))
            yield _backward_case(dtype, rows + 3 * i, cols, distribution, wide, ("cpu", "gpu"))
        for i, distribution in enumerate(DISTRIBUTIONS):
            yield _case(dtype, 5, 1025, distribution, i % 2 == 0, True, i % 3 == 0)
            yield _backward_case(dtype, 67, 1025, distribution, i % 3 == 0)
    flags = (False, True)
    for pick in pairwise(cols=WIDTHS, rows=ROWS, dtype=DTYPES, residual=flags, rstd=flags, wide_weight=flags):
        if pick["rows"] * pick["cols"] <= 1 << 28:  # 4097 rows up to 50257 cols
            yield _case(**pick)
    for pick in pairwise(cols=WIDTHS, rows=ROWS, dtype=DTYPES, wide_weight=flags):
        if pick["rows"] * pick["cols"] <= 1 << 28:
            yield _backward_case(**pick)
    for dtype in ("bfloat16", "float32"):
        for rows, cols in BENCH:
            yield _case(dtype, rows, cols, sets=("performance",))
            yield _case(dtype, rows, cols, residual=True, sets=("performance",))
            yield _backward_case(dtype, rows, cols, sets=("performance",))


def _arrays(case: Case):
    rows, cols = case.shape["rows"], case.shape["cols"]
    arrays = {"x": ((rows, cols), case.dtype), "weight": ((cols,), str(case.arguments.get("weight", case.dtype)))}
    return arrays | ({"residual": arrays["x"]} if "residual" in case.arguments else {})


def _arrays_backward(case: Case):
    arrays = _arrays(case)
    return {"dy": arrays["x"], **arrays, "rstd": ((case.shape["rows"],), "float32")}


def _rows(case: Case, arrays: dict[str, tuple[tuple[int, ...], str]]) -> dict[str, np.ndarray]:
    """The inputs, x in the case's distribution, by row where it speaks of NaN and infinity, the others normal."""
    by_row = {"nan": np.nan, "plus_inf": np.inf}
    distributions = dict.fromkeys(arrays, "normal") | ({} if case.distribution in by_row else {"x": case.distribution})
    inputs = draw(case, arrays, distributions)
    if case.distribution in by_row:
        (rows, cols), _ = arrays["x"]
        inputs["x"][rows // 2, cols // 3] = by_row[case.distribution]
    return inputs


def _draw(case: Case) -> dict[str, np.ndarray]:
    inputs = _rows(case, _arrays(case))
    if "residual" in inputs and case.distribution == "tiny":
        inputs["residual"] /= scalar(case.dtype).type(1024)  # or the sum would not be tiny
    return inputs


def _draw_backward(case: Case) -> dict[str, np.ndarray]:
    rows, cols = case.shape["rows"], case.shape["cols"]
    arrays = _arrays_backward(case)
    del arrays["rstd"]  # it follows from x
    inputs = _rows(case, arrays)
    squares = np.zeros(rows)
    for row in range(0, rows, 1024):  # a big case in float64 at once would not fit
        part = inputs["x"][row : row + 1024].astype(np.float64)
        squares[row : row + 1024] = np.einsum("rc,rc->r", part, part)
    inputs["rstd"] = (1 / np.sqrt(squares / cols + EPS)).astype(np.float32)
    return inputs


def _outputs(case: Case):
    x = ArrayInfo((case.shape["rows"], case.shape["cols"]), case.dtype)
    return outputs(x, case.arguments.get("residual"), "return_rstd" in case.arguments)


def _outputs_backward(case: Case):
    rows, cols = case.shape["rows"], case.shape["cols"]
    return {"dx": ((rows, cols), case.dtype), "dweight": ((cols,), str(case.arguments.get("weight", case.dtype)))}


def _sample(case: Case) -> dict[str, np.ndarray] | None:
    rows, cols = case.shape["rows"], case.shape["cols"]
    if whole(rows * cols):
        return None
    chosen = some(rows, case.seed, cols)
    return {name: flat(chosen, cols if len(shape) == 2 else 1) for name, (shape, _) in _outputs(case).items()}


def _sample_backward(case: Case) -> dict[str, np.ndarray] | None:
    rows, cols = case.shape["rows"], case.shape["cols"]
    if whole(rows * cols):
        return None
    return {"dx": flat(some(rows, case.seed, cols), cols), "dweight": some(cols, case.seed)}


def _expect(case: Case, inputs, at):
    def of_rows(rows):
        part = {name: array[rows] if array.ndim == 2 else array for name, array in inputs.items()}
        return expect(**{**case.arguments, **part})

    if at is None:
        return of_rows(slice(None))
    width = {"rstd": 1}
    return {
        name: at_flat(index, width.get(name, case.shape["cols"]), lambda rows: of_rows(rows)[name])
        for name, index in at.items()
    }


def _expect_backward(case: Case, inputs, at):
    dy, x, weight, rstd = (inputs[name] for name in ("dy", "x", "weight", "rstd"))
    if at is None:
        return expect_backward(dy, x, weight, rstd)
    found = {}
    if "dx" in at:
        of_rows = lambda rows: expect_backward(dy[rows], x[rows], weight, rstd[rows])["dx"]
        found["dx"] = at_flat(at["dx"], x.shape[1], of_rows)
    if "dweight" in at:
        of_cols = lambda cols: expect_backward(dy[:, cols], x[:, cols], weight[cols], rstd)["dweight"]
        found["dweight"] = at_flat(at["dweight"], 1, of_cols)
    return found


def _random(rng: np.random.Generator, dtype: str) -> Case:
    rows, cols = int(rng.integers(1, 5)), int(2 ** rng.uniform(0, 12.5))
    residual, wide = (bool(flag) for flag in rng.integers(0, 2, 2))
    return _case(
        dtype, rows, cols, str(rng.choice(DISTRIBUTIONS)), residual, True, wide, seed=int(rng.integers(1 << 30))
    )


def _random_backward(rng: np.random.Generator, dtype: str) -> Case:
    rows, cols = (int(2 ** rng.uniform(0, 8)) for _ in range(2))
    wide = bool(rng.integers(2))
    return _backward_case(dtype, rows, cols, str(rng.choice(DISTRIBUTIONS)), wide, seed=int(rng.integers(1 << 30)))


OPERATORS = (
    Operator("rmsnorm", "rmsnorm", DTYPES, ("x", "weight"), _arrays, _outputs, _draw, _sample, _expect, _random),
    Operator(
        "rmsnorm_backward",
        "rmsnorm",
        DTYPES,
        ("dy", "x", "weight", "rstd"),
        _arrays_backward,
        _outputs_backward,
        _draw_backward,
        _sample_backward,
        _expect_backward,
        _random_backward,
    ),
)
