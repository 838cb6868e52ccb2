"""``agentgym view``: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.episodes import print_episodes
from agentgym.cli.output import JsonFlag, output
from agentgym.cli.run_dirs import page_path


def view(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run, an evaluation or suites.")],
    episodes: Annotated[
        int, typer.Option(min=0, help="Also print the episodes of the first N tasks of each evaluation.")
    ] = 0,
    out_path: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The page. [default: RUN/report.html]")
    ] = None,
    beside: Annotated[
        Path | None, typer.Option("--beside", metavar="RUN", help="Another run, shown beside this one.")
    ] = None,
    megabytes: Annotated[
        float | None, typer.Option(min=0.1, help="Size of the episodes in the page. [default: 12]")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a page with curves, and with episodes turn by turn with their credit."""
    from agentgym.report import write_report
    from agentgym.report.traces import MEGABYTES

    with output(as_json) as out:
        path = write_report(run, None if out_path is None else page_path(out_path), megabytes or MEGABYTES, beside)
        out.result({"report": str(path)})
        out.console.print(str(path), soft_wrap=True, markup=False)
        if episodes:
            print_episodes(run, episodes, out)
        if open_it:
            import webbrowser

            webbrowser.open(path.resolve().as_uri())
