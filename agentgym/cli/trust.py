"""A question to the user before a command uses the code and servers that another user's run folder names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from agentgym.visible_text import visible

TrustFlag = Annotated[
    bool, typer.Option("--trust", help="Use the code and servers that another user's run folder names.")
]


def require_trust(folder: Path, is_trusted: bool = False) -> None:
    """Return if this user made a run folder, it names nothing harmful, or the user agrees to use it.

    Args:
        folder: the run folder.
        is_trusted: the user has agreed on the command line.

    Raises:
        UsageError: the user does not agree or cannot be asked; the message lists what the folder names.
    """
    from agentgym.api import trust
    from agentgym.trust import sign

    if is_trusted and (folder / "config.json").is_file():
        sign(folder)
    trust.require_trust(folder, _asked)


def _asked(folder: Path, shown: str) -> bool:
    """Ask the user on a terminal and return the answer; without a terminal, return False."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    typer.echo(visible(f"{folder} was not made by you here. It names: {shown}"), err=True)
    return bool(typer.confirm("Run this code, and send these servers your prompts and API keys?", err=True))
