"""Pictures of a result file: the roofline, and throughput against size."""

import math
from pathlib import Path
from typing import Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench.results import timed
from bench.work import work
from crosscheck.cases import CASES

# One colour and mark for a backend in every picture; distinguishable without colour too.
STYLES = {
    "cuda": ("#1b7837", "o"),
    "triton": ("#2166ac", "s"),
    "pallas": ("#b2182b", "^"),
    "torch": ("#444444", "D"),
    "torch_compile": ("#888888", "v"),
    "jax": ("#8c510a", "P"),
    "cupy": ("#762a83", "X"),
}
OTHER = ("#000000", "*")
INCHES, DPI = (10, 6), 120  # 1200 pixels wide
ROOF = "#bbbbbb"


def roofline(document: dict):
    """A figure: FLOP/s against FLOPs a byte, under the hardware's roofs and those measured in the run."""
    records, peaks = timed(document["records"]), document["peaks"]
    works = {r["case"]: work(CASES[r["case"]]) for r in records}
    bandwidth = peaks["memory_tb_s"]
    rates = {rate: peaks[f"{rate}_tflop_s"] for rate in sorted({w.rate for w in works.values()})}
    intensities = [w.intensity for w in works.values()]
    low = min(intensities) / 8
    high = 4 * max(*intensities, *(rate / bandwidth for rate in rates.values()))
    figure, axes = pyplot.subplots(figsize=INCHES)
    ceilings = document["ceilings"]
    measured = max(ceilings["copy_tb_s"], ceilings["stream_tb_s"])
    for name, rate in rates.items():
        _roof(axes, low, high, bandwidth, rate, "-")
        _roof(axes, low, high, measured, ceilings[f"{name}_tflop_s"], ":")
        words = "float32, no tensor cores" if name == "float32" else name
        text = f"{words}: {rate:.0f} TFLOP/s, {ceilings[f'{name}_tflop_s']:.0f} measured"
        axes.annotate(text, (high, rate), xytext=(-4, 4), textcoords="offset points", ha="right")
    axes.text(  # along the slope
        1.3 * low,
        1.6 * low * bandwidth,
        f"memory: {bandwidth:.2f} TB/s, {measured:.2f} measured",
        rotation=math.degrees(math.atan(1.6 * bandwidth)),
        rotation_mode="anchor",
        transform_rotates_text=True,
    )
    _series(axes, records, lambda r: works[r["case"]].intensity, lambda r: r["tflop_s"], "none")
    axes.set(xscale="log", yscale="log", xlim=(low, high), xlabel="FLOPs a byte", ylabel="TFLOP/s")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.suptitle(_title(document, records, "roofline"))
    return figure


def _roof(axes, low: float, high: float, bandwidth: float, rate: float, line: str) -> None:
    ridge = rate / bandwidth
    axes.plot([low, ridge, high], [low * bandwidth, rate, rate], color=ROOF, linestyle=line, zorder=1)


def throughput(document: dict):
    """A figure, a panel a dtype: bytes moved a second against the bytes of a call."""
    records = timed(document["records"])
    dtypes = list(dict.fromkeys(r["dtype"] for r in records))
    figure, panels = pyplot.subplots(1, len(dtypes), figsize=INCHES, sharey=True, squeeze=False)
    for axes, dtype in zip(panels[0], dtypes):
        _series(axes, [r for r in records if r["dtype"] == dtype], lambda r: r["bytes"], lambda r: r["tb_s"], "-")
        copy = document["ceilings"]["copy_tb_s"]
        axes.axhline(copy, color=ROOF, linestyle=":", zorder=1)
        axes.annotate(f"large copy: {copy:.2f} TB/s", (0.02, copy), xytext=(0, 3), textcoords="offset points",
                      xycoords=axes.get_yaxis_transform())  # fmt: skip
        axes.set(xscale="log", xlabel="bytes a call reads and writes", title=dtype)
    panels[0][0].set(ylabel="TB/s", ylim=(0, None))
    panels[0][-1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.suptitle(_title(document, records, "throughput"))
    return figure


def _series(axes, records, x, y, line: str) -> None:
    groups: dict[tuple, list[dict]] = {}
    dtypes = {r["dtype"] for r in records}
    for record in records:
        groups.setdefault((record["backend"], record["variant"], record["dtype"]), []).append(record)
    several = {backend: len({v for b, v, _ in groups if b == backend}) > 1 for backend, _, _ in groups}
    for (backend, variant, dtype), group in groups.items():
        group.sort(key=x)
        color, mark = STYLES.get(backend, OTHER)
        label = f"{backend} {variant}" if several[backend] else backend
        axes.plot(
            [x(r) for r in group],
            [y(r) for r in group],
            linestyle=line,
            color=color,
            marker=mark,
            markersize=8,
            markerfacecolor="none" if dtype == "float32" else color,
            label=f"{label}, {dtype}" if len(dtypes) > 1 else label,
            zorder=2,
        )
    axes.grid(True, which="major", color="#eeeeee")


def _title(document: dict, records: Sequence[dict], what: str) -> str:
    operators = ", ".join(dict.fromkeys(r["operator"] for r in records))
    return f"{operators} on an {document['environment']['gpu']}: {what}"


def save(figure, stem: Path) -> list[Path]:
    """The figure as PNG and SVG beside each other."""
    paths = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=DPI, bbox_inches="tight")
    pyplot.close(figure)
    return paths
