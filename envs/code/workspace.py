"""The files of a workspace: conversion from and to snapshots, and selection of the graded files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from agentgym.canonical import digest
from agentgym.envs.code.file_tree import content_of
from agentgym.errors import ConfigError
from agentgym.sandbox import Snapshot

Files = Mapping[str, str]
"""Text files by path, relative to the workspace."""

_CACHES = ("__pycache__", ".pytest_cache")
MAX_GRADED_BYTES = 1 << 20
"""Largest file that is graded, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The text and files that an agent gets.

    Example:
        >>> given = Assignment(text="Fix add.", files={"add.py": "", "test_add.py": ""}, editable=("*.py",),
        ...                    protected=("test_*.py",))
        >>> given.is_editable("add.py"), given.is_editable("test_add.py")
        (True, False)
    """

    text: str
    """First observation."""
    files: Files = field(default_factory=dict)
    editable: tuple[str, ...] = ()
    """Patterns of the paths whose content is the work; all other files are graded in their initial state."""
    protected: tuple[str, ...] = ()
    """Patterns of paths that are not editable even if ``editable`` matches."""
    test_command: str = ""
    """Command of the tool ``run_tests``, if there is one."""

    def __post_init__(self) -> None:
        for path in self.files:
            if path.startswith("/") or ".." in PurePosixPath(path).parts:
                raise ConfigError(f"a file's path is relative to the workspace, got {path!r}")

    def is_editable(self, path: str) -> bool:
        """Return True if the content of a path is part of the work."""
        if any(fnmatchcase(path, pattern) for pattern in self.protected):
            return False
        return any(fnmatchcase(path, pattern) for pattern in self.editable)

    def work(self, left: Files) -> dict[str, str]:
        """Return the files to grade: the initial files, with the editable ones as the agent left them."""
        kept = {path: text for path, text in self.files.items() if not self.is_editable(path)}
        return kept | {path: text for path, text in left.items() if self.is_editable(path)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """Result of a submission."""

    num_tests: int
    num_passed: int
    is_collected: bool = True
    """False if the work could not be loaded."""
    note: str = ""
    """Short text on the failure, which never contains hidden data."""

    @property
    def is_success(self) -> bool:
        """True if there were tests and all passed."""
        return self.is_collected and 0 < self.num_tests == self.num_passed

    def __str__(self) -> str:
        if not self.is_collected:
            return f"Submitted. The work could not be loaded{': ' + self.note if self.note else ''}."
        return f"Submitted. {self.num_passed} of {self.num_tests} hidden tests passed."


def packed(files: Files) -> Snapshot:
    """Pack text files into a snapshot that a sandbox can restore.

    Example:
        >>> unpacked(packed({"src/add.py": "x = 1"}))
        {'src/add.py': 'x = 1'}
    """
    return packed_bytes({path: text.encode() for path, text in files.items()})


def packed_bytes(files: Mapping[str, bytes]) -> Snapshot:
    """Pack files of any content into a snapshot that a sandbox can restore."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        folders = {str(above) for path in files for above in PurePosixPath(path).parents if str(above) != "."}
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, data in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return Snapshot(buffer.getvalue())


def appended(snapshot: Snapshot, add: Callable[[tarfile.TarFile], None]) -> Snapshot:
    """Return a snapshot with more entries, which replace those of the same names when it is restored.

    Args:
        add: appends the entries to a tar archive.
    """
    buffer = io.BytesIO(snapshot.tar)
    with tarfile.open(fileobj=buffer, mode="a" if snapshot.tar else "w", format=tarfile.PAX_FORMAT) as tar:
        add(tar)
    return Snapshot(buffer.getvalue())


def unpacked(snapshot: Snapshot) -> dict[str, str]:
    """Return the text files of a snapshot, without links, binary files and files that are too large."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(snapshot.tar), mode="r:") as tar:
        for entry in tar:
            if entry.size <= MAX_GRADED_BYTES and (data := content_of(tar, entry)) is not None:
                with suppress(UnicodeDecodeError):
                    found[entry.name] = data.decode()
    return found


def content_key(snapshot: Snapshot) -> str:
    """Return a digest of names, kinds, execute permission and contents, without caches and times."""
    rows = []
    with tarfile.open(fileobj=io.BytesIO(snapshot.tar), mode="r:") as tar:
        for entry in tar:
            if any(part in _CACHES for part in PurePosixPath(entry.name).parts):
                continue
            data = tar.extractfile(entry) if entry.isreg() else None
            content = digest(data.read().hex()) if data is not None else entry.linkname
            rows.append([entry.name, entry.type.decode("latin1"), bool(entry.mode & 0o100), content])
    return digest(sorted(rows, key=lambda row: str(row[0])))
