"""A check that the user trusts the code and servers that a run folder names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agentgym.errors import UsageError


def require_trust(folder: Path, ask: Callable[[Path, str], bool] | None = None) -> None:
    """Return if this user made a run folder, it names nothing harmful, or the user agrees to use it.

    Args:
        ask: shows the user what the folder names, and returns True if the user agrees; None to ask nobody.

    Raises:
        UsageError: the user does not agree or cannot be asked; the message lists what the folder names.
    """
    from agentgym.rollout.kept_files import use_kept_files
    from agentgym.trust import foreign_parts, sign, why_no_key

    if not (parts := foreign_parts(folder)):
        use_kept_files(folder)
        return
    shown = "; ".join(parts[:10]) + (f"; and {len(parts) - 10} more" if len(parts) > 10 else "")
    if ask is not None and ask(folder, shown):
        sign(folder)
        use_kept_files(folder)
        return
    no_key = why_no_key()
    raise UsageError(
        f"{folder} was not made by you here, and using it would run code or send prompts and API keys to servers that "
        f"it names: {shown}; read its config.json, then add --trust on the command line, or call agentgym.trust.sign()"
        + (f"; agentgym recognises no folder as yours, since {no_key}" if no_key else "")
    )
