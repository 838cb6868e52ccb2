"""The kind of run that a folder belongs to, by its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from agentgym.canonical import read_json

RunKind = Literal["training", "evaluation", ""]
_MAX_NAMED = 3


def kind_of_run(folder: Path) -> RunKind:
    """Return the kind of run that wrote a folder, or an empty text for any other folder, such as a model's.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "config.json").write_text('{"eval": {"env": "Guess-v0"}}')
        >>> kind_of_run(folder), kind_of_run(folder / "elsewhere")
        ('evaluation', '')
    """
    try:
        saved = read_json((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    if not isinstance(saved, dict):
        return ""
    if "recipe" in saved and "env" in saved:
        return "training"
    return "evaluation" if "eval" in saved or "eval_suites" in saved else ""


def saved_envs(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the environments of a training run's ``config.json``. That of a run on one has an empty name.

    Example:
        >>> saved_envs({"env": {"id": "Guess-v0", "kwargs": {}}, "envs": []})
        [{'name': '', 'id': 'Guess-v0', 'kwargs': {}}]
    """
    return [*(config.get("envs") or ())] or [{"name": "", "id": "", "kwargs": {}, **(config.get("env") or {})}]


def runs_in(folder: Path) -> str:
    """Return the end of an error message that names the newest runs in a folder; an empty text if it holds none.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "guess").mkdir()
        >>> _ = (folder / "guess" / "config.json").write_text('{"eval": {"env": "Guess-v0"}}')
        >>> runs_in(folder) == f"; name one of the runs in it: {folder / 'guess'}", runs_in(folder / "guess")
        (True, '')
    """
    found = [path for path in folder.glob("*") if kind_of_run(path)]
    newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_MAX_NAMED]
    names = ", ".join(map(str, newest)) + (", ..." if len(found) > len(newest) else "")
    return f"; name one of the runs in it: {names}" if found else ""
