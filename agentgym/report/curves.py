"""The curves of the report, with their order and explanations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from agentgym.canonical import packaged
from agentgym.report.charts import (
    Beside,
    Format,
    Point,
    as_share,
    as_text,
    line_chart,
    stacked_chart,
)
from agentgym.types import Status

_SHARE: Format = "share"
_NUMBER: Format = "number"

_CHARTS = packaged("agentgym.report", "charts.toml")
KNOWN: dict[str, tuple[str, Format, str]] = {name: tuple(chart) for name, chart in _CHARTS["rl"].items()}
"""Charts of the RL phase in order: label, format, explanation."""


def of_envs(names: Sequence[str]) -> dict[str, tuple[str, Format, str]]:
    """Return the charts of a mixture's environments in the form of :data:`KNOWN`."""
    return {
        f"{name}/success": (f"{name}: success", _SHARE, f"mean success of {name}'s valid episodes") for name in names
    }


SFT_KNOWN: dict[str, tuple[str, Format, str]] = {name: tuple(chart) for name, chart in _CHARTS["sft"].items()}

NUM_COLOURS = 12
"""Number of colours for parts in the style sheet."""

_WIDE, _MIDDLE = 300, 170
"""Heights in pixels of the chart of success and of stacked charts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart with its caption."""

    label: str
    about: str
    last: str
    """Latest value as text."""
    chart: Markup
    last_beside: str = ""
    """Latest value of the other run; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Metrics of another run, whose curves are drawn beside this run's."""

    name: str
    rl: Sequence[dict[str, object]] = ()
    sft: Sequence[dict[str, Any]] = ()
    evals: Sequence[dict[str, object]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One part of a whole, for a legend or a bar."""

    name: str
    css: str
    share: float
    text: str


def success_curve(
    rows: Sequence[dict[str, Any]], eval_rows: Sequence[dict[str, Any]], beside: Rows | None = None
) -> Chart | None:
    """Return the chart of training success per step with evaluations as dots; None if there are neither."""
    xs, ys = _column(rows, "success")
    points = _evaluations(eval_rows, "evaluation")
    if not ys and not points:
        return None
    other = None
    if beside is not None:
        other_xs, other_ys = _column(beside.rl, "success")
        named = _evaluations(beside.evals, f"{beside.name}, evaluation")
        other = Beside(name=beside.name, xs=other_xs, ys=other_ys, points=named)
    of_other = f"; dashed and hollow: {beside.name}" if beside is not None else ""
    return Chart(
        label="success",
        about="share of the step's valid episodes that succeed; failed ones are left out; dots are evaluations with "
        f"95 % intervals{of_other}",
        last=as_share(ys[-1]) if ys else as_share(points[-1].y),
        chart=line_chart(
            xs, ys, name="success", height=_WIDE, show="share", from_zero=True, points=points, beside=other
        ),
        last_beside=as_share(other.ys[-1]) if other and other.ys else "",
    )


def small_multiples(
    rows: Sequence[dict[str, object]],
    known: dict[str, tuple[str, Format, str]],
    beside: Sequence[dict[str, object]] = (),
    beside_name: str = "",
) -> list[Chart]:
    """Return the known curves in the rows, each with the other run's curve."""
    curves: list[Chart] = []
    for name, (label, show, about) in known.items():
        xs, ys = _column(rows, name)
        if ys:
            other_xs, other_ys = _column(beside, name)
            other = Beside(name=beside_name, xs=other_xs, ys=other_ys) if other_ys else None
            is_positive = min([*ys, *other_ys]) >= 0
            chart = line_chart(xs, ys, name=label, show=show, from_zero=is_positive, beside=other)
            last_beside = as_text(other_ys[-1], show) if other_ys else ""
            text, last = f"{name}: {about}", as_text(ys[-1], show)
            curves.append(Chart(label=label, about=text, last=last, chart=chart, last_beside=last_beside))
    return curves


def _evaluations(rows: Sequence[dict[str, Any]], what: str) -> list[Point]:
    return [
        Point(
            float(row["step"]),
            float(row["success"]),
            float(row.get("success_low", row["success"])),
            float(row.get("success_high", row["success"])),
            f"{what} at step {row['step']}: {as_share(float(row['success']))}",
        )
        for row in rows
        if "success" in row
    ]


def other_curves(
    rows: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]] = (), beside_name: str = ""
) -> list[Chart]:
    """Return curves of all other numbers in the rows, under their own names."""
    shown = {"phase", "step", "success", *KNOWN}
    names = sorted({name for row in rows for name in row if name not in shown and "/" not in name})
    return small_multiples(rows, {name: (name, _NUMBER, "as logged") for name in names}, beside, beside_name)


def status_chart(rows: Sequence[dict[str, object]]) -> tuple[Markup, list[Share]] | None:
    """Return the stacked chart of episode statuses per step; None if they were not logged."""
    names = {f"status/{status}": (str(status), f"c{at}") for at, status in enumerate(Status)}
    return _stack(rows, names, "count", lambda total, share: f"{total:,.0f}", "statuses")


def time_chart(rows: Sequence[dict[str, object]]) -> tuple[Markup, list[Share]] | None:
    """Return the stacked chart of wall time by phase per step; None if it was not logged."""
    keys = dict.fromkeys(name for row in rows for name in row if name.startswith("time/"))
    names = {n: (n.removeprefix("time/").removesuffix("_s"), f"c{at % NUM_COLOURS}") for at, n in enumerate(keys)}
    return _stack(rows, names, "seconds", lambda total, share: f"{_in_short(share)}, {total:,.1f} s", "times")


def _in_short(share: float) -> str:
    return as_share(share) if share >= 0.001 else "under 0.1%"


def _stack(
    rows: Sequence[dict[str, Any]],
    names: dict[str, tuple[str, str]],
    show: Format,
    text: Callable[[float, float], str],
    chart_key: str,
) -> tuple[Markup, list[Share]] | None:
    """Return a stacked chart of the columns that are not all 0 and its legend; ``names`` are (label, colour)."""
    found = [(label, css, [float(row.get(key, 0.0)) for row in rows]) for key, (label, css) in names.items()]
    layers = [layer for layer in found if any(layer[2])]
    if not layers:
        return None
    totals = [sum(values) for _, _, values in layers]
    whole = sum(totals) or 1.0
    legend = [
        Share(name=name, css=f"part-{css[1:]}", share=total / whole, text=text(total, total / whole))
        for (name, css, _), total in zip(layers, totals, strict=True)
    ]
    return stacked_chart([float(row["step"]) for row in rows], layers, height=_MIDDLE, show=show, key=chart_key), legend


def _column(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    found = [(float(row["step"]), float(row[name])) for row in rows if isinstance(row.get(name), int | float)]
    return [x for x, _ in found], [y for _, y in found]
