"""The roofline as an SVG of our own: a few lines, and the same bytes every time."""

import math
from html import escape

from reading.operators import COLUMNS
from reading.results import Roofline

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 20, 44
MARKS = {"cuda": "circle", "triton": "square", "pallas": "triangle"}
BESIDE = {"other": -14, "cuda": -5, "triton": 4, "pallas": 13}  # by which marks of one intensity stand apart


def draw(data: Roofline, label: str) -> str:
    """An ``<svg>`` of FLOP/s against FLOPs a byte; colours are the page's, by class. label: what it shows, in words."""
    peak, measured = data.memory
    ridges = [rate / peak for rate, _ in data.rates.values()]
    xs = [p.intensity for p in data.points]
    low, high = min(xs) / 8, 4 * max(*xs, *ridges)
    top = 2 * max(rate for rate, _ in data.rates.values())
    bottom = min(low * measured, *(p.tflop_s for p in data.points)) / 2
    x = lambda v: LEFT + (WIDTH - LEFT - RIGHT) * math.log(v / low) / math.log(high / low)
    y = lambda v: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(v / bottom) / math.log(top / bottom)
    parts = [f'<svg class="roofline" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        at = x(10.0**power)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_power(power)}</text>')
    for power in range(math.ceil(math.log10(bottom)), math.floor(math.log10(top)) + 1):
        at = y(10.0**power)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_power(power)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">FLOPs a byte</text>')
    parts.append(f'<text x="{LEFT - 44}" y="{TOP - 6}">TFLOP/s</text>')
    for kind, bandwidth, place in (("peak", peak, 0), ("measured", measured, 1)):
        for name, rates in data.rates.items():
            rate = rates[place]
            points = ((low, low * bandwidth), (rate / bandwidth, rate), (high, rate))
            path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points if b >= bottom)
            parts.append(f'<path class="roof {kind}" d="M{path}"/>')
    for name, (rate, _) in data.rates.items():
        words = "float32, no tensor cores" if name == "float32" else name
        parts.append(
            f'<text x="{WIDTH - RIGHT - 4}" y="{y(rate) - 5:.1f}" text-anchor="end">{words}: {rate:.0f}</text>'
        )
    start = low * 1.6
    slope = math.degrees(math.atan2(y(start * peak) - y(2 * start * peak), x(2 * start) - x(start)))
    at = f"{x(start):.1f} {y(start * peak) - 6:.1f}"
    parts.append(f'<text transform="translate({at}) rotate({-slope:.1f})">memory: {peak:.2f} TB/s</text>')
    for point in data.points:
        backend = point.backend if point.backend in MARKS else "other"
        parts.append(_mark(backend, x(point.intensity) + BESIDE[backend], y(point.tflop_s)))
    parts.append("</svg>")
    return "\n".join(parts)


def legend(data: Roofline) -> list[tuple[str, str]]:
    """A mark, as an ``<svg>``, and whose it is."""
    there = [b for b in MARKS if any(p.backend == b for p in data.points)]
    rest = sorted({p.backend for p in data.points if p.backend not in MARKS})
    entries = [(backend, COLUMNS[backend]) for backend in there] + ([("other", ", ".join(rest))] if rest else [])
    mark = lambda name: f'<svg class="mark" viewBox="0 0 14 14" aria-hidden="true">{_mark(name, 7, 7)}</svg>'
    return [(mark(name), words) for name, words in entries]


def _mark(backend: str, x: float, y: float) -> str:
    match MARKS.get(backend):
        case "circle":
            return f'<circle class="{backend}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
        case "square":
            return f'<rect class="{backend}" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
        case "triangle":
            return f'<path class="{backend}" d="M{x:.1f} {y - 5.5:.1f}l5 9h-10z"/>'
    return f'<path class="other" d="M{x - 4:.1f} {y:.1f}h8M{x:.1f} {y - 4:.1f}v8"/>'


def _power(power: int) -> str:
    return {0: "1", 1: "10", 2: "100", 3: "1000", -1: "0.1", -2: "0.01", -3: "0.001"}.get(power, f"1e{power}")
