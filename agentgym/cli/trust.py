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
    from agentgym.api import trust
    from agentgym.trust import sign

    if is_trusted and (folder / "config.json").is_file():
        sign(folder)
    trust.require_trust(folder, _asked)


def _asked(folder: Path, shown: str) -> bool:
    """Ask on a terminal; elsewhere nobody agrees."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    typer.echo(f"{folder} was not made by you here. It names: {shown}", err=True)
    return bool(typer.confirm("Run this code, and send these servers your prompts and API keys?", err=True))
