"""``agentgym plot``: draw curves of training runs as a figure for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from agentgym.cli.output import JsonFlag, output

Axis = Literal["steps", "rollouts", "tokens", "minutes"]
_NUMBERS = {"x": "xs", "mean": "mean", "low": "low", "high": "high"}


def plot(  # noqa: PLR0913  (a command's options)
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of training runs, or of sweeps.")],
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
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Draw a line for each value of this setting, as in credit.estimator; repeat it for several settings. "
            "[default: all settings that differ]",
        ),
    ] = None,
    width: Annotated[float, typer.Option(min=1.0, max=40.0, help="In inches.")] = 5.0,
    height: Annotated[float, typer.Option(min=1.0, max=40.0, help="In inches.")] = 3.2,
    as_json: JsonFlag = False,
) -> None:
    """Draw curves of training runs. Runs that differ only in their seed become one line.

    The band of a line is the 95 % interval over seeds; of two seeds it is their range. Runs of one seed are one seed.
    """
    from agentgym.report.methods import count
    from agentgym.report.plot import plot as draw

    with output(as_json) as out:
        lines = draw(
            runs,
            out_path,
            metric=metric,
            axis=axis,
            held_out=held_out,
            smooth=smooth,
            labels=label or (),
            group_by=group_by or (),
            size=(width, height),
        )
        shown = [
            {"label": line.label, "num_runs": line.num_runs, "seeds": line.seeds, "band": line.band}
            | {name: getattr(line, attribute).tolist() for name, attribute in _NUMBERS.items()}
            for line in lines
        ]
        out.result({"figure": str(out_path), "lines": shown})
        for line in lines:
            span = f" ({line.band} {line.low[-1]:.3g} to {line.high[-1]:.3g})" if line.band else ""
            about = count(len(line.seeds), "seed") if line.num_runs > 1 else "1 run"
            runs_of = f" of {count(line.num_runs, 'run')}" if line.num_runs > len(line.seeds) else ""
            text = f"{line.label}, {about}{runs_of}: {line.mean[0]:.3g} to {line.mean[-1]:.3g}{span}"
            out.console.print(text, markup=False, soft_wrap=True)
        out.console.print(str(out_path), markup=False, soft_wrap=True)
