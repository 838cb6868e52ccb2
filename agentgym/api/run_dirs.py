"""Folders that runs and evaluations write to."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentgym.errors import UsageError, require_extra
from agentgym.rollout.run_kind import kind_of_run


def as_path(what: str, given: object) -> Path:
    """Return the path of a folder that a caller of the Python API gave.

    Raises:
        UsageError: it is neither text nor a path.
    """
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"{what} is {given!r}, expected the path of a folder")
    return Path(given)


def new_run_dir(name: str, wanted: Path | None = None, root: Path = Path("runs")) -> Path:
    """Make a new run folder: ``wanted``, or ``root/name-NNN`` with the next free number.

    Raises:
        UsageError: ``wanted`` exists and is not empty.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> [new_run_dir("household", root=root).name for _ in range(2)]
        ['household-001', 'household-002']
    """
    if wanted is not None:
        if wanted.is_file() or (wanted.is_dir() and any(wanted.iterdir())):
            command = {"training": "train", "evaluation": "eval", "": ""}[kind_of_run(wanted)]
            resume = f", or resume it: agentgym {command} --resume {wanted}" if command else ""
            raise UsageError(f"{wanted} exists and is not empty; choose another folder{resume}")
        wanted.mkdir(parents=True, exist_ok=True)
        return wanted
    root.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")
    taken = [int(path.name.rpartition("-")[2]) for path in root.glob(f"{slug}-*") if re.search(r"-\d+$", path.name)]
    number = max(taken, default=0) + 1
    while True:  # another command may choose the same number at the same time
        path = root / f"{slug}-{number:03d}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            continue
        return path


@contextmanager
def removed_if_nothing_was_played(folder: Path, *, is_new: bool = True) -> Iterator[None]:
    """Remove the folder of a new evaluation that fails before its first episode has ended."""
    try:
        yield
    except Exception:
        if is_new and not any(path.stat().st_size for path in folder.rglob("episodes.jsonl")):
            shutil.rmtree(folder)
        raise


def need_train_extra(what: str) -> None:
    """Raise an error early if the modules that run a model are not installed.

    Raises:
        MissingExtraError: a module is missing; the message names the command that installs it.
    """
    require_extra(what, "train", "torch", "transformers", "tokenizers")
