"""``agentgym export``: write an evaluation's episodes in formats of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, output
from agentgym.errors import UsageError

SUFFIXES = (".eval", ".jsonl", ".parquet")


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an evaluation or of a training run.")],
    out_path: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="File to write: .eval for inspect_ai, .jsonl or .parquet for chats."
        ),
    ],
    evaluation: Annotated[
        str | None, typer.Option("--evaluation", metavar="NAME", help="Evaluation of the run. [default: the last]")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Export recorded episodes for other tools: a log of inspect_ai, or conversations for training."""
    from agentgym.interop.recorded import read_recorded

    with output(as_json) as out:
        if out_path.suffix not in SUFFIXES:
            raise UsageError(f"{out_path} must end in one of {', '.join(SUFFIXES)}, which selects the format")
        recorded = read_recorded(run, evaluation)
        if out_path.suffix == ".eval":
            from agentgym.interop.inspect_log import write_inspect_log as write
        else:
            from agentgym.interop.conversations import write_conversations as write
        number = write(recorded, out_path)
        left_out = len(recorded.trajectories) - number
        out.result({"file": str(out_path), "num_episodes": number, "num_left_out": left_out})
        failed = f"; {left_out} failed and are left out" if left_out else ""
        out.console.print(f"{number} episodes{failed}: {out_path}", markup=False, soft_wrap=True)
