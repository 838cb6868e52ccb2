"""``agentgym view``: write a run's report as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from agentgym.cli.output import JsonFlag, Output, output, page_path
from agentgym.cli.server_options import NoToken
from agentgym.errors import UsageError, require_extra
from agentgym.server_tokens import made_token
from agentgym.visible_text import visible


def view(  # noqa: PLR0913  (a command's options)
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a training run, an evaluation, suites or cross-play.")
    ],
    *,
    episodes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Also print, with each turn's reward, the first N tasks of each evaluation, and of N tasks of the "
            "last training step the best and the worst episode.",
        ),
    ] = 0,
    out_path: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="HTML file to write. [default: RUN/report.html]")
    ] = None,
    beside: Annotated[
        Path | None, typer.Option("--beside", metavar="RUN", help="Another run to show beside this one.")
    ] = None,
    megabytes: Annotated[
        float | None, typer.Option(min=0.1, help="Size limit of the episodes in the page. [default: 12]")
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Serve the page to a browser on this machine and update its curves, until Ctrl-C."),
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --live; 0 chooses a free one.")] = 8002,
    no_token: NoToken = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a page with a run's curves and its episodes, turn by turn with their credit."""
    from agentgym.report import write_report
    from agentgym.report.traces import MEGABYTES

    if live:
        if out_path is not None or beside is not None or episodes:
            raise UsageError("--live serves the page of one run; leave out --out, --beside and --episodes")
        _serve(run, megabytes or MEGABYTES, port, "" if no_token else made_token(), open_it, Output(as_json))
        return
    with output(as_json) as out:
        path = write_report(run, None if out_path is None else page_path(out_path), megabytes or MEGABYTES, beside)
        out.result({"report": str(path)})
        out.console.print(str(path), soft_wrap=True, markup=False)
        if episodes:
            print_episodes(run, episodes, out)
        if open_it:
            import webbrowser

            webbrowser.open(path.resolve().as_uri())


def _serve(run: Path, megabytes: float, port: int, token: str, open_it: bool, out: Output) -> None:
    require_extra("agentgym view --live", "serve", "fastapi", "uvicorn")
    from agentgym.cli.live import serve

    def say(url: str) -> None:
        out.announce({"url": url}, f"{run} as it goes on: {url} (Ctrl-C ends it)", markup=False)
        if open_it:
            import webbrowser

            webbrowser.open(url)

    serve(run, megabytes, port, token, say)


# -------------------------------------------- printed episodes of a run: the same tasks in each of its evaluations

STYLES = {"agent": "bold", "tool": "cyan", "env": "default"}


def print_episodes(run_dir: Path, num_tasks: int, out: Output) -> None:
    """Print the first tasks of a run's evaluations and of its last training step, message by message.

    Raises:
        UsageError: the run has no episode yet.
        CorruptDataError: its episodes cannot be read.
    """
    from agentgym.report.run_folder import open_run_folder
    from agentgym.report.transcripts import last_step_transcripts, sample_transcripts

    run = open_run_folder(run_dir)
    tasks = [*sample_transcripts(run, num_tasks), *last_step_transcripts(run, num_tasks)]
    if not tasks:
        raise UsageError(f"{run_dir} has no episode to show yet")
    for episodes in tasks:
        for episode in episodes:
            label = f", {episode.played_in}" if episode.played_in else ""
            out.console.print(f"\n[bold]task {episode.task}{label}[/]: {episode.outcome}", soft_wrap=True)
            for line in episode.lines:
                text = Text(f"  {line.speaker:5} ", style="dim").append(visible(line.text), style=STYLES[line.speaker])
                out.console.print(
                    text.append(f"  [{line.reward}]" if line.reward else "", style="yellow"), soft_wrap=True
                )
