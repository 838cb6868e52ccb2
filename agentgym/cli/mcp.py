"""``agentgym mcp``: offer an environment's tools to any MCP client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.env_args import EnvArgument, KwargsArgument, parse_pairs
from agentgym.cli.output import claim_stdin, claim_stdout
from agentgym.errors import UsageError, require_extra
from agentgym.registry import find, make


def mcp(
    env: EnvArgument,
    kwargs: KwargsArgument = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    task: Annotated[int, typer.Option(min=0, help="Index of the task in the split.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Seed of the episode. [default: the task's own]")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve streamable HTTP on this port of 127.0.0.1; 0 chooses a free one."),
    ] = None,
    record: Annotated[Path | None, typer.Option(help="File to which calls and rewards are written at the end.")] = None,
) -> None:
    """Serve one episode as an MCP server over standard input and output, or over HTTP.

    The task is in the server's instructions. Rewards are not shown to the client.
    """
    require_extra("agentgym mcp", "mcp", "mcp_types")
    from agentgym.server.mcp_stdio import McpEpisode
    from agentgym.tools.retrieval.server import bound_socket

    _require_place(record)
    # before the environment's module is imported, since whatever it prints is no message of the protocol
    streams = (claim_stdin(), claim_stdout()) if port is None else None
    made = make(find(env).id, **parse_pairs(kwargs or ()))
    try:
        tasks = made.tasks(split)
        if not 0 <= task < len(tasks):
            raise UsageError(f"{made.env_id}: no task {task} in split {split!r}, which has {len(tasks)}")
        if seed is None:
            seed = tasks[task].seed
        episode = McpEpisode(made, seed=seed, options={"task": task, "split": split})
        try:
            if port is None:
                asyncio.run(episode.run(*(streams or ())))
            else:
                listening = bound_socket("127.0.0.1", port)
                listening.listen(64)  # from here on the port is open, so clients wait instead of being rejected
                print(f"serving {made.env_id} at http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
                with contextlib.suppress(KeyboardInterrupt):
                    asyncio.run(episode.run_http(listening))
        finally:
            if record is not None:
                record.write_text(json.dumps(episode.record, indent=1) + "\n", encoding="utf-8")
    finally:
        made.close()


def _require_place(record: Path | None) -> None:
    """Check that the record can be written, before there is one to lose.

    Raises:
        UsageError: it cannot.
    """
    if record is None:
        return
    if record.is_dir():
        raise UsageError(f"--record {record} is a folder; name a file")
    try:
        record.touch()
    except OSError as error:
        raise UsageError(f"--record {record} cannot be written: {error.strerror}") from error
