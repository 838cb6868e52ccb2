"""``agentgym plot``: draw curves of training runs as a figure for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from agentgym.cli.output import JsonFlag, output

Axis = Literal["steps", "rollouts", "tokens", "minutes"]


def plot(  # noqa: PLR0913  (a command's options)
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of training runs.")],
    out_path: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write: .svg, .pdf or .png.")],
    *,
    metric: Annotated[str, typer.Option("--metric", "-y", help="Name of a metric in metrics.jsonl.")] = "success",
    axis: Annotated[Axis, typer.Option("--axis", "-x", help="Quantity on the horizontal axis.")] = "steps",
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out", help="Plot the evaluations during training (eval.every) instead of the training steps."
        ),
    ] = False,
    smooth: Annotated[int, typer.Option(min=1, help="Mean over the last N steps.")] = 1,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Label of a line; repeat it for each line in order. [default: the settings that differ]"),
    ] = None,
    width: Annotated[float, typer.Option(min=1.0, max=40.0, help="In inches.")] = 5.0,
    height: Annotated[float, typer.Option(min=1.0, max=40.0, help="In inches.")] = 3.2,
    as_json: JsonFlag = False,
) -> None:
    """Draw curves of training runs. Runs that differ only in their seed become one line with an interval."""
    from agentgym.report.plot import plot as draw

    with output(as_json) as out:
        size = (width, height)
        lines = draw(
            runs, out_path, metric=metric, axis=axis, held_out=held_out, smooth=smooth, labels=label or (), size=size
        )
        shown = [
            {"label": line.label, "num_runs": line.num_runs, "x": line.xs.tolist()}
            | {name: getattr(line, name).tolist() for name in ("mean", "low", "high")}
            for line in lines
        ]
        out.result({"figure": str(out_path), "lines": shown})
        for line in lines:
            runs_of = "1 run" if line.num_runs == 1 else f"{line.num_runs} seeds"
            span = "" if line.num_runs == 1 else f" ({line.low[-1]:.3g} to {line.high[-1]:.3g})"
            text = f"{line.label}, {runs_of}: {line.mean[0]:.3g} to {line.mean[-1]:.3g}{span}"
            out.console.print(text, markup=False, soft_wrap=True)
        out.console.print(str(out_path), markup=False, soft_wrap=True)
