"""The name of this package for pip, and the command that adds an extra.

The name ``agentgym`` on PyPI belongs to another project, so no command that a message names may install that.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

DISTRIBUTION = "agentgym-turns"
"""Name for pip. The package to import is ``agentgym``."""
STRANGER = "agentgym"
"""The other project's name on PyPI, whose package to import has our name."""
_CHECKOUT = Path(__file__).resolve().parent.parent


def install_command(*extras: str) -> str:
    """Return the command that installs extras of this package, from where the package came.

    Example:
        >>> install_command("gui")[:11], install_command("gui", "trl")[-10:]
        ('pip install', "[gui,trl]'")
    """
    wanted = ",".join(extras)
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f"pip install -e '{'.' if Path.cwd() == _CHECKOUT else _CHECKOUT}[{wanted}]'"
    source = _address()
    return f"pip install '{DISTRIBUTION}[{wanted}]{f' @ {source}' if source else ''}'"


def with_commands(text: str) -> str:
    """Return a text with the command in place of each ``{extra NAME}``.

    Example:
        >>> with_commands("export A=1 && {extra gui}") == f"export A=1 && {install_command('gui')}"
        True
    """
    return re.sub(r"\{extra ([\w,-]+)\}", lambda found: install_command(*found[1].split(",")), text)


def stranger() -> str:
    """Return what to do about the other project's package in this environment; empty if it is not installed."""
    try:
        found = importlib.metadata.distribution(STRANGER)
        ours = importlib.metadata.metadata(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""
    if found.metadata.json.get("summary") == ours.json["summary"]:  # this project, as it was named before
        return ""
    return (
        f"{STRANGER} {found.version} is installed here, another project's package of the same name, and Python imports "
        f"one of the two: pip uninstall {STRANGER}, then install this one again ({install_command('train')})"
    )


def _address() -> str:
    """Return the address of the wheel, folder or repository that was installed; empty if an index gave it."""
    try:
        read = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return ""
    direct: dict[str, object] = json.loads(read) if read else {}
    return f"{'git+' if 'vcs_info' in direct else ''}{direct.get('url', '')}"
