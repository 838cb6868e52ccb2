"""Print some of a run's episodes: the same tasks in each of its evaluations."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from agentgym.cli.output import Output

STYLES = {"agent": "bold", "tool": "cyan", "env": "default"}


def print_episodes(run_dir: Path, num_tasks: int, out: Output) -> None:
    """Print the first tasks of a run's evaluations, message by message.

    Raises:
        UsageError: the run has no evaluation.
        CorruptDataError: an evaluation's episodes cannot be read.
    """
    from agentgym.errors import UsageError
    from agentgym.report.run_folder import open_run_folder
    from agentgym.report.transcripts import sample_transcripts

    tasks = sample_transcripts(open_run_folder(run_dir), num_tasks)
    if not tasks:
        raise UsageError(f"{run_dir} has no evaluation to show episodes of")
    for episodes in tasks:
        for episode in episodes:
            label = f", evaluation {episode.evaluation}" if episode.evaluation else ""
            out.console.print(f"\n[bold]task {episode.task}{label}[/]: {episode.outcome}", soft_wrap=True)
            for line in episode.lines:
                text = Text(f"  {line.speaker:5} ", style="dim")
                out.console.print(text.append(line.text, style=STYLES[line.speaker]), soft_wrap=True)
