"""``agentgym view``: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.episodes import print_episodes
from agentgym.cli.output import JsonFlag, output


def view(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run or an evaluation.")],
    episodes: Annotated[
        int, typer.Option(min=0, help="Also print the episodes of the first N tasks of each evaluation.")
    ] = 0,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write RUN/report.html: curves, and episodes turn by turn with their credit."""
    from agentgym.report import write_report

    with output(as_json) as out:
        path = write_report(run)
        out.result({"report": str(path)})
        out.console.print(str(path), soft_wrap=True, markup=False)
        if episodes:
            print_episodes(run, episodes, out)
        if open_it:
            import webbrowser

            webbrowser.open(path.resolve().as_uri())
