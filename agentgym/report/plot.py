"""Curves of training runs for papers. Runs that differ only in their seed become one line with a band.

matplotlib draws them, so the file may be SVG, PDF or PNG.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agentgym.canonical import is_whole
from agentgym.errors import UsageError, require_extra, require_known
from agentgym.evals.statistics import student_interval
from agentgym.report.methods import count, methods_of, several, training_runs
from agentgym.report.run_folder import RunFolder, measured

Floats = npt.NDArray[np.float64]
Axis = Literal["steps", "rollouts", "tokens", "minutes"]
Band = Literal["", "range", "95 % interval"]
AXES: Mapping[Axis, str] = {
    "steps": "RL steps",
    "rollouts": "rollouts",
    "tokens": "sampled tokens",
    "minutes": "minutes of rollouts and training",
}
SUFFIXES = (".svg", ".pdf", ".png")
NUM_POINTS = 200
"""Number of points of a line with an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The measurements of one run."""

    xs: Floats
    ys: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLine:
    """The mean over a method's seeds at common positions, with a band."""

    label: str
    num_runs: int
    seeds: tuple[str, ...]
    xs: Floats
    mean: Floats
    low: Floats
    high: Floats
    band: Band = ""
    """The meaning of ``low`` to ``high``: of two seeds their range, of more the interval over seeds by Student's t."""

    @property
    def about(self) -> str:
        """The number of seeds and runs, and the meaning of the band, as text."""
        num_seeds = len(self.seeds)
        runs = "" if self.num_runs == num_seeds else f", {count(self.num_runs, 'run')}"
        return count(num_seeds, "seed") + runs + (f", {self.band}" if self.band else "")


def plot(  # noqa: PLR0913  (one per option of `agentgym plot`)
    folders: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    metric: str = "success",
    axis: Axis = "steps",
    held_out: bool = False,
    smooth: int = 1,
    labels: str | Sequence[str] = (),
    group_by: str | Sequence[str] = (),
    size: tuple[float, float] = (5.0, 3.2),
) -> list[MeanLine]:
    """Draw a metric of training runs and return the lines.

    Args:
        folders: folders of runs or of sweeps, or one of them.
        out: file to write, which ends in ``.svg``, ``.pdf`` or ``.png``.
        metric: name of the metric in ``metrics.jsonl``.
        axis: quantity on the horizontal axis.
        held_out: plot evaluations during training (``eval.every``) instead of training steps.
        smooth: number of steps of the moving mean.
        labels: labels of the lines, in the order of their first runs; by default the settings that differ.
        group_by: settings whose values make a line, by path. A seed with several runs is their mean.
        size: width and height in inches.

    Raises:
        UsageError: a folder is not a training run or lacks the metric.
        MissingExtraError: matplotlib is not installed.
    """
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise UsageError(f"{out} must end in {', '.join(SUFFIXES)}")
    require_known("axis", axis, AXES)
    if not is_whole(smooth) or smooth < 1:
        raise UsageError(f"smooth={smooth!r} is not a number of steps, which is at least 1")
    labels = several(labels)
    methods = methods_of(training_runs(folders), several(group_by))
    if labels and len(labels) != len(methods):
        names = ", ".join(method.label for method in methods)
        raise UsageError(f"{count(len(labels), 'label')} for {count(len(methods), 'line')} ({names})")
    lines = [
        _line(
            label,
            {
                seed: [_curve(run, metric, axis, held_out, smooth) for run in runs]
                for seed, runs in method.by_seed.items()
            },
        )
        for label, method in zip(labels or [method.label for method in methods], methods, strict=True)
    ]
    what = ("held-out " if held_out else "") + metric.replace("_", " ")
    _draw(lines, out, AXES[axis], what, size)
    return lines


def _curve(run: RunFolder, metric: str, axis: Axis, held_out: bool, smooth: int) -> Curve:
    steps = run.metrics.get("rl", [])
    rows = run.metrics.get("eval", []) if held_out else steps
    if not rows:
        missing = "evaluation" if held_out else "RL step"
        raise UsageError(f"{run.path} has no {missing} in its metrics yet")
    known = sorted({name for row in rows for name in row} - {"phase", "step"})
    require_known(f"metric in {run.path}", metric, known)
    found = measured(rows, metric)
    if not found:
        raise UsageError(f"{run.path} never measured {metric}")
    travelled = np.concatenate([[0.0], np.cumsum([_AMOUNT[axis](row) for row in steps])])
    # the step of an evaluation is the number of training steps before it; training steps count from 1
    at_step = {0: 0.0} | {int(row["step"]): float(x) for row, x in zip(steps, travelled[1:], strict=True)}
    xs = np.array([at_step[int(row["step"])] for row, _ in found if int(row["step"]) in at_step])
    ys = np.array([number for row, number in found if int(row["step"]) in at_step])
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


def _line(label: str, by_seed: Mapping[str, Sequence[Curve]]) -> MeanLine:
    """Return the mean over seeds; a seed with several runs is their mean."""
    curves = [curve for of_seed in by_seed.values() for curve in of_seed]
    seeds = tuple(by_seed)
    if len(curves) == 1:
        (one,) = curves
        return MeanLine(label=label, num_runs=1, seeds=seeds, xs=one.xs, mean=one.ys, low=one.ys, high=one.ys)
    first, last = max(curve.xs[0] for curve in curves), min(curve.xs[-1] for curve in curves)
    if last < first:
        raise UsageError(f"{label}: a run ends at {last:g}, before another one begins at {first:g}; leave one out")
    if all(np.array_equal(curve.xs, curves[0].xs) for curve in curves):
        xs = curves[0].xs
    else:
        xs = np.linspace(first, last, NUM_POINTS)
    values = np.array(
        [np.mean([np.interp(xs, curve.xs, curve.ys) for curve in of_seed], axis=0) for of_seed in by_seed.values()]
    )
    low, high = values.min(axis=0), values.max(axis=0)
    band: Band = "range" if len(seeds) == 2 else ""
    if len(seeds) > 2:  # an interval of two seeds is too wide to be informative
        spans = [student_interval(column) for column in values.T.tolist()]
        low, high = np.array([span.low for span in spans]), np.array([span.high for span in spans])
        band = "95 % interval"
    return MeanLine(
        label=label,
        num_runs=len(curves),
        seeds=seeds,
        xs=xs,
        mean=values.mean(axis=0),
        low=low,
        high=high,
        band=band,
    )


def _draw(lines: Sequence[MeanLine], out: Path, across: str, up: str, size: tuple[float, float]) -> None:
    require_extra("agentgym plot", "plot", "matplotlib")
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter

    # keep text as text, and make the file deterministic
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "agentgym", "font.size": 9}):
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        for line in lines:
            about = "" if line.num_runs == 1 else f" ({line.about})"
            marker = "o" if len(line.xs) <= 12 else ""
            (drawn,) = axes.plot(
                line.xs, line.mean, marker=marker, markersize=3, linewidth=1.4, label=line.label + about
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
