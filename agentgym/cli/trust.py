"""Ask before a command uses what the run folder of somebody else names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

TrustFlag = Annotated[
    bool, typer.Option("--trust", help="Use the code and the servers that a run folder of somebody else names.")
]


def require_trust(folder: Path, is_trusted: bool = False) -> None:
    """Let a command use a run folder: the user's own, a harmless one, or one that the user agrees to.

    Args:
        is_trusted: the user has agreed on the command line.

    Raises:
        UsageError: the user does not agree, or cannot be asked; the message lists what the folder names.
    """
    from agentgym.errors import UsageError
    from agentgym.trust import foreign_parts, sign

    if is_trusted and (folder / "config.json").is_file():
        sign(folder)
    if not (parts := foreign_parts(folder)):
        return
    shown = "; ".join(parts[:10]) + (f"; and {len(parts) - 10} more" if len(parts) > 10 else "")
    if sys.stdin.isatty() and sys.stderr.isatty():
        typer.echo(f"{folder} was not made by you here. It names: {shown}", err=True)
        if typer.confirm("Run this code, and send these servers your prompts and API keys?", err=True):
            sign(folder)
            return
    raise UsageError(
        f"{folder} was not made by you here, and using it would run code or send prompts and API keys to servers that "
        f"it names: {shown}; read its config.json, then add --trust"
    )
