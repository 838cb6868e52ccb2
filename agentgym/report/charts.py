"""Charts as inline SVG: lines with a moving average, and stacked areas. Colours come from the page's style sheet.

Each chart carries ``data-hover``, a JSON list of ``[x in the drawing, text]``, which the page's script shows under
the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup, escape

MAX_POINTS = 300
"""Points a curve is drawn with; longer ones are averaged in bins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Size of a drawing in its own units, and the margins left for the axes."""

    width: int = 300
    height: int = 120
    left: int = 42
    right: int = 8
    top: int = 8
    bottom: int = 18


@dataclass(frozen=True, slots=True)
class Point:
    """A measured value with its interval, drawn as a dot with whiskers."""

    x: float
    y: float
    low: float
    high: float
    label: str


Format = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The curve of another run, drawn dashed in the same chart."""

    name: str
    xs: Sequence[float] = ()
    ys: Sequence[float] = ()
    points: Sequence[Point] = ()


def as_number(value: float) -> str:
    """A value in few characters.

    Example:
        >>> [as_number(x) for x in (0.0, 0.25, 12.0, 1234.5, 2.5e6, 1.8e-05)]
        ['0', '0.25', '12', '1.2k', '2.5M', '1.8e-05']
    """
    size = abs(value)
    for limit, scale, unit in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if size >= limit:
            return f"{value / scale:.3g}{unit}" if size >= 100 * scale else f"{value / scale:.2g}{unit}"
    return f"{value:.3g}"


def as_share(value: float) -> str:
    """Return a share as per cent, of small ones no more than the first digit.

    Example:
        >>> [as_share(share) for share in (0.125, 0.0000192, 0.0, 1e-9)]
        ['12.5%', '0.002%', '0%', 'under 0.001%']
    """
    percent = abs(value) * 100
    if 0 < percent < 0.0005:
        return "under 0.001%"
    return f"{value * 100:.{1 if percent < 0.1 else 3}g}%"


def ticks(low: float, high: float, num_wanted: int = 4) -> list[float]:
    """Round numbers that cover an interval.

    Example:
        >>> ticks(0.0, 0.93)
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    span = (high - low) or abs(high) or 1.0
    rough = span / num_wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * m for m in (1, 2, 2.5, 5) if power * m >= rough * 0.999), power * 10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, max(last, first + 1) + 1)]


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """The mean of up to ``window`` values ending at each.

    Example:
        >>> moving_average([0.0, 2.0, 4.0], 2)
        [0.0, 1.0, 3.0]
    """
    ends = range(1, len(values) + 1)
    return [fmean(values[max(0, end - window) : end]) for end in ends]


def thinned(xs: Sequence[float], ys: Sequence[float], max_points: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """The curve with finite values alone, averaged in bins if it has more than ``max_points``."""
    kept = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
    size = math.ceil(len(kept) / max_points) or 1
    bins = [kept[at : at + size] for at in range(0, len(kept), size)]
    return [b[-1][0] for b in bins], [fmean(y for _, y in b) for b in bins]


def line_chart(
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    frame: Frame = Frame(),
    show: Format = as_number,
    from_zero: bool = False,
    points: Sequence[Point] = (),
    beside: Beside | None = None,
) -> Markup:
    """One curve: raw values faint, their moving average strong, measured points with intervals on top.

    Args:
        beside: the curve of another run; it may have other steps.
    """
    xs, ys = thinned(xs, ys)
    if not ys and not points:
        return Markup('<p class="none">no values</p>')
    other_xs, other_ys = thinned(beside.xs, beside.ys) if beside else ([], [])
    marked = [*points, *(beside.points if beside else ())]
    lows = [*ys, *other_ys, *(p.low for p in marked), *([0.0] if from_zero else [])]
    axes = _Axes(frame, [*xs, *other_xs, *(p.x for p in marked)], lows, [*ys, *other_ys, *(p.high for p in marked)])
    smooth, words = _smoothed("step", xs, ys, show)
    parts = [*axes.grid(show)]
    hover = [*zip(map(axes.x, xs), words, strict=True), *((axes.x(p.x), p.label) for p in points)]
    if beside and other_ys:
        other_smooth, other_words = _smoothed(f"{beside.name}, step", other_xs, other_ys, show)
        parts.append(_path("beside", axes, other_xs, other_smooth if len(other_ys) > 8 else other_ys))
        hover += zip(map(axes.x, other_xs), other_words, strict=True)
    parts += [_dot(axes, point, "dot beside") for point in (beside.points if beside else ())]
    parts.append(_path("raw", axes, xs, ys))
    if len(ys) > 8:
        parts.append(_path("smooth", axes, xs, smooth))
    parts += [_dot(axes, point) for point in points]
    return _svg(frame, hover, parts)


def _smoothed(what: str, xs: Sequence[float], ys: Sequence[float], show: Format) -> tuple[list[float], list[str]]:
    """Return the moving average of a curve, and what its points say."""
    window = max(2, len(ys) // 12)
    smooth = moving_average(ys, window)
    words = [
        f"{what} {x:g}: {show(y)}" + (f" (mean of {window}: {show(s)})" if len(ys) > 8 else "")
        for x, y, s in zip(xs, ys, smooth, strict=True)
    ]
    return smooth, words


def stacked_chart(
    xs: Sequence[float],
    layers: Sequence[tuple[str, str, Sequence[float]]],
    *,
    frame: Frame = Frame(),
    show: Format = as_number,
) -> Markup:
    """Areas on top of each other; ``layers`` are (name, CSS class, values)."""
    drawn = [(name, css, thinned(xs, values)) for name, css, values in layers]
    if not drawn or not drawn[0][2][0]:
        return Markup('<p class="none">no values</p>')
    at = drawn[0][2][0]
    totals = [0.0] * len(at)
    areas: list[tuple[str, list[float], list[float]]] = []
    for _, css, (_, values) in drawn:
        tops = [total + value for total, value in zip(totals, values, strict=True)]
        areas.append((css, totals, tops))
        totals = tops
    axes = _Axes(frame, at, [0.0], totals)
    parts = [*axes.grid(show), *(_area(css, axes, at, floor, top) for css, floor, top in areas)]
    hover = [
        (axes.x(x), f"step {x:g}: " + ", ".join(f"{name} {show(v[i])}" for name, _, (_, v) in drawn if v[i]))
        for i, x in enumerate(at)
    ]
    return _svg(frame, hover, parts)


def interval_chart(rows: Sequence[Point], *, frame: Frame) -> Markup:
    """Shares between 0 and 1 as dots with whiskers, one row each."""
    axes = _Axes(frame, [0.0, 1.0], [0.0], [1.0])
    bottom = frame.height - frame.bottom
    marks = (0.0, 0.25, 0.5, 0.75, 1.0)
    parts = [_line("grid", axes.x(t), frame.top, axes.x(t), bottom) for t in marks]
    parts += [_text("tick", axes.x(t), frame.height - 5, as_share(t), anchor="middle") for t in marks]
    step = (bottom - frame.top) / len(rows)
    for at, row in enumerate(rows):
        y = frame.top + (at + 0.5) * step
        parts.append(_text("row", frame.left - 10, y + 4, row.label, anchor="end"))
        parts += [_line("whisker", axes.x(row.low), y, axes.x(row.high), y), _circle(axes.x(row.y), y, 5)]
    told = "; ".join(f"{row.label} {as_number(row.y)} ({as_number(row.low)} to {as_number(row.high)})" for row in rows)
    return _svg(frame, [], parts, told)


class _Axes:
    """The positions of values in a drawing."""

    def __init__(self, frame: Frame, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> None:
        self._frame = frame
        self._ticks = ticks(min(lows), max(highs))
        self._y0, self._y1 = self._ticks[0], self._ticks[-1]
        self._x0, self._x1 = min(xs), max(xs)

    def x(self, value: float) -> float:
        span = self._x1 - self._x0
        share = (value - self._x0) / span if span else 0.5
        return self._frame.left + share * (self._frame.width - self._frame.left - self._frame.right)

    def y(self, value: float) -> float:
        share = (value - self._y0) / (self._y1 - self._y0)
        bottom = self._frame.height - self._frame.bottom
        return bottom - share * (bottom - self._frame.top)

    def points(self, xs: Sequence[float], ys: Sequence[float]) -> list[str]:
        return [f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True)]

    def grid(self, show: Format) -> list[str]:
        left, right, y = self._frame.left, self._frame.width - self._frame.right, self._frame.height - 5
        parts = [_line("grid", left, self.y(t), right, self.y(t)) for t in self._ticks]
        parts += [_text("tick", left - 5, self.y(t) + 3, show(t), anchor="end") for t in self._ticks]
        if self._x1 > self._x0:
            parts += [_text("tick", left, y, f"{self._x0:g}"), _text("tick", right, y, f"{self._x1:g}", anchor="end")]
        return parts


def _path(css: str, axes: _Axes, xs: Sequence[float], ys: Sequence[float]) -> str:
    if len(xs) == 1:
        return _circle(axes.x(xs[0]), axes.y(ys[0]), 3)
    return f'<polyline class="{css}" points="{" ".join(axes.points(xs, ys))}"/>'


def _area(css: str, axes: _Axes, xs: Sequence[float], floor: Sequence[float], top: Sequence[float]) -> str:
    outline = [*axes.points(xs, top), *reversed(axes.points(xs, floor))]
    return f'<polygon class="area {css}" points="{" ".join(outline)}"/>'


def _dot(axes: _Axes, point: Point, css: str = "dot") -> str:
    x = axes.x(point.x)
    return _line("whisker", x, axes.y(point.low), x, axes.y(point.high)) + _circle(x, axes.y(point.y), 4, css)


def _line(css: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _circle(x: float, y: float, radius: int, css: str = "dot") -> str:
    return f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'


def _text(css: str, x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text class="{css}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(frame: Frame, hover: Sequence[tuple[float, str]], parts: Sequence[str], told: str = "") -> Markup:
    """Put a drawing together; ``told`` is what is read aloud, the first and the last point if it is empty."""
    ends = [text.replace("\n", ", ") for _, text in (min(hover), max(hover))] if hover else ["no point yet"]
    label = escape(told or " to ".join(ends))
    rounded = json.dumps([[round(x, 1), text] for x, text in sorted(hover)])
    return Markup(
        f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{label}" '
        f'data-hover="{escape(rounded)}" '
        f'data-top="{frame.top}" data-bottom="{frame.height - frame.bottom}">{"".join(parts)}</svg>'
    )
