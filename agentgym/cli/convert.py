"""``agentgym convert``: convert rows of SWE-bench to task directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, output
from agentgym.errors import UsageError


def convert(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="SWE-bench's rows: .parquet, .jsonl or .json.")],
    out_path: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the task directories.")],
    image: Annotated[
        str | None,
        typer.Option(
            "--image", metavar="NAME", help="Image name with {name} or {instance_id}. [default: SWE-bench's own]"
        ),
    ] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this instance; repeatable.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="COLUMN", help="Leave out an unknown column; repeatable.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Convert rows of SWE-bench to tasks in Harbor's format, which SWE-v0 reads."""
    from agentgym.envs.code.swebench import IMAGE, read_instances, write_harbor_task

    with output(as_json) as out:
        pattern = image or IMAGE
        try:
            pattern.format(name="", instance_id="")
        except (KeyError, IndexError, ValueError):
            raise UsageError(
                f"--image may contain {{name}} or {{instance_id}} and no other placeholder; got {pattern!r}"
            ) from None
        instances = read_instances(rows, ids or (), drop or ())
        for instance in instances:
            write_harbor_task(instance, out_path, pattern)
        out.result({"folder": str(out_path), "num_tasks": len(instances)})
        out.console.print(f"{len(instances)} tasks: {out_path}", markup=False, soft_wrap=True)
