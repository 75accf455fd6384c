"""Pictures of a result file: the roofline, and throughput against size."""

import math
from pathlib import Path
from typing import Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench.work import DEVICES, work
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


def roofline(records: Sequence[dict], device: str):
    """A figure: FLOP/s against FLOPs a byte, under the device's roofs."""
    peaks = DEVICES[device]
    figure, axes = pyplot.subplots(figsize=INCHES)
    works = {r["case"]: work(CASES[r["case"]]) for r in records}
    rates = sorted({w.rate for w in works.values()}, key=lambda rate: peaks.rates[rate])
    intensities = [w.intensity for w in works.values()]
    low, high = min(intensities) / 8, 4 * max(*intensities, *(peaks.rates[rate] / peaks.bandwidth for rate in rates))
    for rate in rates:
        ridge = peaks.rates[rate] / peaks.bandwidth
        axes.plot(
            [low, ridge, high],
            [low * peaks.bandwidth / 1e12, peaks.rates[rate] / 1e12, peaks.rates[rate] / 1e12],
            color="#bbbbbb",
            zorder=1,
        )
        name = "float32, no tensor cores" if rate == "float32" else rate
        axes.annotate(
            f"{name}: {peaks.rates[rate] / 1e12:.0f} TFLOP/s",
            (high, peaks.rates[rate] / 1e12),
            xytext=(-4, 4),
            textcoords="offset points",
            ha="right",
        )
    _series(
        axes,
        records,
        lambda r: works[r["case"]].intensity,
        lambda r: works[r["case"]].flops / r["device_us"] / 1e6,
        "none",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        xlabel="FLOPs a byte",
        ylabel="TFLOP/s",
        title=_title(records, f"roofline, {device}"),
    )
    axes.text(  # along the slope
        1.3 * low,
        1.6 * low * peaks.bandwidth / 1e12,
        f"memory: {peaks.bandwidth / 1e12:.1f} TB/s",
        rotation=math.degrees(math.atan(1.6 * peaks.bandwidth / 1e12)),
        rotation_mode="anchor",
        transform_rotates_text=True,
    )
    return figure


def throughput(records: Sequence[dict]):
    """A figure: bytes moved a second against the bytes of a call."""
    figure, axes = pyplot.subplots(figsize=INCHES)
    works = {r["case"]: work(CASES[r["case"]]) for r in records}
    _series(
        axes, records, lambda r: works[r["case"]].bytes, lambda r: works[r["case"]].bytes / r["device_us"] / 1e6, "-"
    )
    axes.set(
        xscale="log",
        xlabel="bytes a call reads and writes",
        ylabel="TB/s",
        ylim=(0, None),
        title=_title(records, "throughput"),
    )
    return figure


def _series(axes, records, x, y, line: str) -> None:
    groups: dict[tuple, list[dict]] = {}
    dtypes = {r["dtype"] for r in records}
    for record in records:
        groups.setdefault((record["backend"], record["variant"], record["dtype"]), []).append(record)
    for (backend, variant, dtype), group in groups.items():
        group.sort(key=x)
        color, mark = STYLES.get(backend, OTHER)
        label = backend if variant in (None, group[0]["operator"]) or "." in variant else f"{backend} {variant}"
        hollow = dtype == "float32"
        axes.plot(
            [x(r) for r in group],
            [y(r) for r in group],
            linestyle=line,
            color=color,
            marker=mark,
            markersize=8,
            markerfacecolor="none" if hollow else color,
            label=f"{label}, {dtype}" if len(dtypes) > 1 else label,
            zorder=2,
        )
    axes.grid(True, which="major", color="#eeeeee")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def _title(records: Sequence[dict], what: str) -> str:
    operators = ", ".join(dict.fromkeys(r["operator"] for r in records))
    dtypes = ", ".join(dict.fromkeys(r["dtype"] for r in records))
    return f"{operators} ({dtypes}): {what}"


def save(figure, stem: Path) -> list[Path]:
    """The figure as PNG and SVG beside each other."""
    paths = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=DPI, bbox_inches="tight")
    pyplot.close(figure)
    return paths
