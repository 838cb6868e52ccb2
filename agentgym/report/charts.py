"""Charts as data for uPlot, which draws them in the browser (``charts.js``), and short formats of numbers.

A chart is an HTML element with its data as JSON and a text alternative. Colours are names of CSS variables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from markupsafe import Markup, escape

MAX_POINTS = 1000
"""Most points of a curve; longer curves are averaged in bins."""
_NUM_SMOOTHED = 8
"""Number of points above which a curve gets a moving average."""

Format = Literal["number", "count", "share", "seconds"]


@dataclass(frozen=True, slots=True)
class Point:
    """A measured value with its interval, drawn as a dot with whiskers."""

    x: float
    y: float
    low: float
    high: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The curve of another run, drawn dashed in the same chart."""

    name: str
    xs: Sequence[float] = ()
    ys: Sequence[float] = ()
    points: Sequence[Point] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, area or set of dots of a chart.

    Args:
        css: CSS variable of its colour, without dashes.
        style: ``faint`` is a thin line; ``area`` is filled down to the axis; ``dots`` have whiskers.
    """

    name: str
    css: str
    values: Mapping[float, float]
    style: Literal["line", "faint", "dashed", "area", "dots", "hollow"] = "line"
    shown: Mapping[float, float] | None = None
    """Values shown at the pointer, if they differ from the drawn ones."""
    lows: Mapping[float, float] | None = None
    highs: Mapping[float, float] | None = None

    def as_json(self, xs: Sequence[float]) -> dict[str, object]:
        """Return the series over common x values, with None for missing values."""
        found: dict[str, object] = {"name": self.name, "css": self.css, "style": self.style}
        columns = {"y": self.values, "shown": self.shown, "low": self.lows, "high": self.highs}
        return found | {name: _column(values, xs) for name, values in columns.items() if values is not None}


def _column(values: Mapping[float, float], xs: Sequence[float]) -> list[float | None]:
    return [float(f"{values[x]:.5g}") if x in values else None for x in xs]


def as_text(value: float, show: Format) -> str:
    """Format a value for a chart.

    Example:
        >>> as_text(0.25, "share"), as_text(1.5, "seconds")
        ('25%', '1.5 s')
    """
    if show == "seconds":
        return f"{value:.3g} s"
    return as_share(value) if show == "share" else as_number(value)


def as_number(value: float) -> str:
    """Format a value in few characters.

    Example:
        >>> [as_number(x) for x in (0.0, -0.25, 12.0, 999.9, 1234.5, 99_600.0, 999_600.0, 1.8e-05)]
        ['0', '−0.25', '12', '1k', '1.2k', '99.6k', '1M', '1.8e−05']
    """
    shown, unit = float(f"{value:.3g}"), ""
    for scale, name in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        if math.isfinite(value) and abs(float(f"{value:.3g}")) >= scale:  # rounded first, or 999.9 would be 1e+03
            shown, unit = float(f"{value:.{2 if abs(value) < 99.5 * scale else 3}g}") / scale, name
    return f"{shown:.3g}{unit}".replace("-", "−")


def as_share(value: float) -> str:
    """Format a share in per cent, with a single significant digit if it is small.

    Example:
        >>> [as_share(share) for share in (-0.125, 0.0000192, 0.0, 1e-9)]
        ['−12.5%', '0.002%', '0%', 'under 0.001%']
    """
    percent = abs(value) * 100
    if 0 < percent < 0.0005:
        return "under 0.001%"
    return f"{value * 100:.{1 if percent < 0.1 else 3}g}%".replace("-", "−")


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of the last ``window`` values at each position; of fewer values at the start.

    Example:
        >>> moving_average([0.0, 2.0, 4.0], 2)
        [0.0, 1.0, 3.0]
    """
    ends = range(1, len(values) + 1)
    return [fmean(values[max(0, end - window) : end]) for end in ends]


def thinned(xs: Sequence[float], ys: Sequence[float], max_points: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """Return the finite values of a curve, averaged in bins if there are more than ``max_points``."""
    kept = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
    size = math.ceil(len(kept) / max_points) or 1
    bins = [kept[at : at + size] for at in range(0, len(kept), size)]
    return [b[-1][0] for b in bins], [fmean(y for _, y in b) for b in bins]


def line_chart(
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    name: str = "value",
    height: int = 130,
    show: Format = "number",
    from_zero: bool = False,
    points: Sequence[Point] = (),
    beside: Beside | None = None,
) -> Markup:
    """Return a chart of one curve: faint raw values, their moving average, and measured points with intervals.

    Args:
        name: name of the curve at the pointer.
        beside: curve of another run, possibly at other steps.
    """
    xs, ys = thinned(xs, ys)
    if not ys and not points:
        return Markup('<p class="none">no values</p>')
    found: list[Series] = []
    if beside is not None:
        found += _smoothed(*thinned(beside.xs, beside.ys), name=beside.name, line="c1", faint=None)
        found += _dots(beside.points, f"{beside.name}, evaluation", "c1", "hollow")
    found += _smoothed(xs, ys, name=name, line="accent", faint="accent-soft")
    found += _dots(points, "evaluation", "ink", "dots")
    told = _told(name, xs, ys, show) if ys else "; ".join(point.label for point in points)
    return chart(found, height=height, show=show, from_zero=from_zero, told=told, key=name)


def _smoothed(xs: Sequence[float], ys: Sequence[float], *, name: str, line: str, faint: str | None) -> list[Series]:
    """Return a curve and its moving average; without a ``faint`` colour, as for another run, only the average."""
    raw = dict(zip(xs, ys, strict=True))
    if not raw:
        return []
    style: Literal["line", "dashed"] = "line" if faint else "dashed"
    if len(ys) <= _NUM_SMOOTHED:
        return [Series(name=name, css=line, values=raw, style=style)]
    window = max(2, len(ys) // 12)
    mean = dict(zip(xs, moving_average(ys, window), strict=True))
    average = Series(name=f"{name}, mean of {window}", css=line, values=mean, style=style)
    return [*([Series(name=name, css=faint, values=raw, style="faint")] if faint else []), average]


def _dots(points: Sequence[Point], name: str, css: str, style: Literal["dots", "hollow"]) -> list[Series]:
    if not points:
        return []
    return [
        Series(
            name=name,
            css=css,
            style=style,
            values={point.x: point.y for point in points},
            lows={point.x: point.low for point in points},
            highs={point.x: point.high for point in points},
        )
    ]


def stacked_chart(
    xs: Sequence[float],
    layers: Sequence[tuple[str, str, Sequence[float]]],
    *,
    height: int = 150,
    show: Format = "number",
    key: str = "",
) -> Markup:
    """Return a chart of stacked areas; ``layers`` are (name, colour, values)."""
    drawn = [(name, css, thinned(xs, values)) for name, css, values in layers]
    if not drawn or not drawn[0][2][0]:
        return Markup('<p class="none">no values</p>')
    at = drawn[0][2][0]
    totals = [0.0] * len(at)
    found = []
    for name, css, (_, values) in drawn:
        totals = [total + value for total, value in zip(totals, values, strict=True)]
        tops, own = dict(zip(at, totals, strict=True)), dict(zip(at, values, strict=True))
        found.append(Series(name=name, css=css, values=tops, shown=own, style="area"))
    last = ", ".join(f"{name} {as_text(values[-1], show)}" for name, _, (_, values) in drawn)
    told = f"step {at[-1]:g}: {last}"
    return chart(found[::-1], height=height, show=show, from_zero=True, told=told, key=key)


def chart(series: Sequence[Series], *, height: int, show: Format, from_zero: bool, told: str, key: str) -> Markup:
    """Return the HTML element of a chart.

    Args:
        series: the series, drawn in order; the first is at the bottom.
        told: text alternative.
        key: identifies the chart when the page updates it.
    """
    xs = sorted({x for one in series for x in one.values})
    data = {
        "x": xs,
        "series": [one.as_json(xs) for one in series],
        "show": show,
        "from_zero": from_zero,
    }
    text = json.dumps(data, separators=(",", ":"))
    return Markup(
        f'<div class="chart" role="img" tabindex="0" style="height:{height}px" aria-label="{escape(told)}" '
        f'data-key="{escape(key)}" data-chart="{escape(text)}"></div>'
    )


def _told(name: str, xs: Sequence[float], ys: Sequence[float], show: Format) -> str:
    first, last = (f"{as_text(ys[at], show)} at step {xs[at]:g}" for at in (0, -1))
    if len(ys) == 1:
        return f"{name}: {first}"
    return f"{name}: {first} to {last}, between {as_text(min(ys), show)} and {as_text(max(ys), show)}"
