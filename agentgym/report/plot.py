"""Curves of training runs for papers. Runs that differ only in their seed become one line with an interval.

matplotlib draws them, so the file may be SVG, PDF or PNG.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agentgym.canonical import readable_json
from agentgym.errors import UsageError, require_extra, require_known
from agentgym.evals.compare import flat_items
from agentgym.evals.statistics import student_interval
from agentgym.report.run_folder import RunFolder, open_run_folder

Floats = npt.NDArray[np.float64]
Axis = Literal["steps", "rollouts", "tokens", "minutes"]
AXES: Mapping[Axis, str] = {
    "steps": "RL steps",
    "rollouts": "rollouts",
    "tokens": "sampled tokens",
    "minutes": "minutes of rollouts and training",
}
SUFFIXES = (".svg", ".pdf", ".png")
_LONGEST_LABEL = 40
"""Longest label in characters. Lines whose settings are longer are labelled by their folders."""
NUM_POINTS = 200
"""Number of points of a line with an interval."""
_NOT_A_DIFFERENCE = ("seed", "ranks.", "num_threads", "checkpoint_every", "trackers", "record")
"""Settings that do not distinguish runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The measurements of one run."""

    xs: Floats
    ys: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The mean of runs with different seeds at common positions, with 95 % intervals; for two runs, their range."""

    label: str
    num_runs: int
    xs: Floats
    mean: Floats
    low: Floats
    high: Floats


def plot(
    folders: Sequence[Path],
    out: Path,
    *,
    metric: str = "success",
    axis: Axis = "steps",
    held_out: bool = False,
    smooth: int = 1,
    labels: Sequence[str] = (),
    size: tuple[float, float] = (5.0, 3.2),
) -> list[Line]:
    """Draw a metric of training runs and return the lines.

    Args:
        folders: folders of the runs.
        out: file to write, which ends in ``.svg``, ``.pdf`` or ``.png``.
        metric: name of the metric in ``metrics.jsonl``.
        axis: quantity on the horizontal axis.
        held_out: plot evaluations during training (``eval.every``) instead of training steps.
        smooth: number of steps of the moving mean.
        labels: labels of the lines, in the order of their first runs; by default the settings that differ.
        size: width and height in inches.

    Raises:
        UsageError: a folder is not a training run or lacks the metric.
        MissingExtraError: matplotlib is not installed.
    """
    if out.suffix not in SUFFIXES:
        raise UsageError(f"{out} must end in {', '.join(SUFFIXES)}")
    runs = [open_run_folder(folder) for folder in folders]
    for run in runs:
        if run.kind != "training run":
            raise UsageError(f"{run.path} is not a training run but an {run.kind}; compare those with agentgym compare")
    groups = _grouped(runs)
    if labels and len(labels) != len(groups):
        raise UsageError(f"{len(labels)} labels for {len(groups)} lines ({', '.join(label for label, _ in groups)})")
    named = zip(labels or [label for label, _ in groups], [group for _, group in groups], strict=True)
    lines = [_line(label, [_curve(run, metric, axis, held_out, smooth) for run in group]) for label, group in named]
    what = ("held-out " if held_out else "") + metric.replace("_", " ")
    _draw(lines, out, AXES[axis], what, size)
    return lines


def _grouped(runs: Sequence[RunFolder]) -> list[tuple[str, list[RunFolder]]]:
    """Group runs that differ only in the seed. Each group's label names the settings that differ."""
    settings = [_settings(run) for run in runs]
    groups: dict[str, list[int]] = {}
    for at, values in enumerate(settings):
        groups.setdefault(json.dumps(values, sort_keys=True), []).append(at)
    first = [settings[group[0]] for group in groups.values()]
    all_names = list(dict.fromkeys(name for one in first for name in one))
    differing = [name for name in all_names if len({json.dumps(one.get(name)) for one in first}) > 1]
    shown = [name for name in differing if name != "recipe"] or differing
    labels = [", ".join(f"{_short(name)}={_word(one.get(name))}" for name in shown) for one in first]
    if len(groups) == 1 or max(map(len, labels)) > _LONGEST_LABEL:
        labels = [runs[group[0]].name for group in groups.values()]
    return [(label, [runs[at] for at in group]) for label, group in zip(labels, groups.values(), strict=True)]


def _short(name: str) -> str:
    """Return the last part of a setting's name; for a component's ``kind``, the name of the component.

    Example:
        >>> _short("credit.estimator"), _short("strategy.branching.kind")
        ('estimator', 'branching')
    """
    parts = name.removesuffix(".kind").split(".")
    return parts[-1]


def _settings(run: RunFolder) -> dict[str, object]:
    return {name: value for name, value in flat_items(run.config) if not name.startswith(_NOT_A_DIFFERENCE)}


def _word(value: object) -> str:
    return value if isinstance(value, str) else readable_json(value)


def _curve(run: RunFolder, metric: str, axis: Axis, held_out: bool, smooth: int) -> Curve:
    steps = run.metrics.get("rl", [])
    rows = run.metrics.get("eval", []) if held_out else steps
    if not rows:
        missing = "evaluation" if held_out else "RL step"
        raise UsageError(f"{run.path} has no {missing} in its metrics yet")
    known = sorted({name for row in rows for name in row} - {"phase", "step"})
    require_known(f"metric in {run.path}", metric, known)
    measured = [row for row in rows if isinstance(row.get(metric), int | float) and math.isfinite(row[metric])]
    if not measured:
        raise UsageError(f"{run.path} never measured {metric}")
    travelled = np.concatenate([[0.0], np.cumsum([_AMOUNT[axis](row) for row in steps])])
    # the step of an evaluation is the number of training steps before it; training steps count from 1
    at_step = {0: 0.0} | {int(row["step"]): float(x) for row, x in zip(steps, travelled[1:], strict=True)}
    xs = np.array([at_step[int(row["step"])] for row in measured if int(row["step"]) in at_step])
    ys = np.array([float(row[metric]) for row in measured if int(row["step"]) in at_step])
    return Curve(xs=xs, ys=_smoothed(ys, smooth))


_AMOUNT: Mapping[Axis, Callable[[Mapping[str, Any]], float]] = {
    "steps": lambda row: 1.0,
    "rollouts": lambda row: float(sum(value for name, value in row.items() if name.startswith("status/"))),
    "tokens": lambda row: float(row.get("sampled_tokens", 0.0)),
    "minutes": lambda row: sum(value for name, value in row.items() if name.startswith("time/")) / 60,
}
"""Length of a step along each axis."""


def _smoothed(values: Floats, width: int) -> Floats:
    """Return the mean of each value and the ``width - 1`` values before it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    means: Floats = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def _line(label: str, curves: Sequence[Curve]) -> Line:
    if len(curves) == 1:
        (one,) = curves
        return Line(label=label, num_runs=1, xs=one.xs, mean=one.ys, low=one.ys, high=one.ys)
    first, last = max(curve.xs[0] for curve in curves), min(curve.xs[-1] for curve in curves)
    if all(np.array_equal(curve.xs, curves[0].xs) for curve in curves):
        xs = curves[0].xs
    else:
        xs = np.linspace(first, last, NUM_POINTS)
    values = np.array([np.interp(xs, curve.xs, curve.ys) for curve in curves])
    if len(curves) == 2:  # an interval of two seeds is too wide to be informative
        low, high = values.min(axis=0), values.max(axis=0)
    else:
        spans = [student_interval(column) for column in values.T.tolist()]
        low, high = np.array([span.low for span in spans]), np.array([span.high for span in spans])
    return Line(label=label, num_runs=len(curves), xs=xs, mean=values.mean(axis=0), low=low, high=high)


def _draw(lines: Sequence[Line], out: Path, across: str, up: str, size: tuple[float, float]) -> None:
    require_extra("agentgym plot", "plot", "matplotlib")
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter

    # keep text as text, and make the file deterministic
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "agentgym", "font.size": 9}):
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        for line in lines:
            runs = "" if line.num_runs == 1 else f" ({line.num_runs} seeds)"
            marker = "o" if len(line.xs) <= 12 else ""
            (drawn,) = axes.plot(
                line.xs, line.mean, marker=marker, markersize=3, linewidth=1.4, label=line.label + runs
            )
            axes.fill_between(line.xs, line.low, line.high, color=drawn.get_color(), alpha=0.18, linewidth=0)
        axes.set_xlabel(across)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # format ticks as 20k, 1.5M
        axes.set_ylabel(up)
        axes.margins(x=0.01)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1 or lines[0].num_runs > 1:
            axes.legend(frameon=False, fontsize=8)
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=200, metadata={"Date": None} if out.suffix == ".svg" else None)
        plt.close(figure)
