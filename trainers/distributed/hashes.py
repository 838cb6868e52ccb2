"""Hashes of a folder's files: they tell a damaged file from one that this Python or torch cannot read."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from agentgym.trainers.distributed.ranks import Ranks

HASHES = "hashes.json"
"""File with the SHA-256 of every other file of the folder, and the versions of Python and torch that wrote them."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of reading a folder's files again and comparing their hashes.

    Example:
        >>> Findings(damaged=("model.pt",), written_by="Python 3.11.2 with torch 2.13.0").damaged
        ('model.pt',)
    """

    damaged: tuple[str, ...]
    """Names of files that are missing or differ from what was written."""
    written_by: str


def this_python() -> str:
    """Return the versions of Python and torch."""
    return f"Python {platform.python_version()} with torch {torch.__version__}"


def write_hashes(folder: Path, own: list[str], ranks: Ranks) -> None:
    """Write the hashes of a folder's files. All ranks must call this after they have written theirs.

    Args:
        own: names of the files that this rank has written.

    Raises:
        OSError: a file cannot be read, or the hashes cannot be written.
    """
    every = ranks.gathered({name: _hash_of(folder / name) for name in own})
    if ranks.is_main:
        found = {"written_by": this_python(), "sha256": {name: value for part in every for name, value in part.items()}}
        (folder / HASHES).write_text(json.dumps(found, indent=1), encoding="utf-8")


def compare_hashes(folder: Path) -> Findings | None:
    """Compare a folder's files with the hashes of when they were written; None if there are no readable hashes."""
    try:
        found = json.loads((folder / HASHES).read_text(encoding="utf-8"))
        expected, written_by = dict(found["sha256"]), str(found["written_by"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Findings(tuple(name for name in sorted(expected) if not _is_same(folder / name, expected[name])), written_by)


def _is_same(path: Path, expected: object) -> bool:
    try:
        return _hash_of(path) == expected
    except OSError:
        return False


def _hash_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
