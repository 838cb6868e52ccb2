"""Trees of files with modes and links: read from a folder, written into a tar archive."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentgym.errors import CorruptDataError


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a symbolic link or a folder."""

    data: bytes = b""
    mode: int = 0o644
    link: str = ""
    """Target of a symbolic link; empty for files and folders."""
    is_folder: bool = False

    @property
    def is_file(self) -> bool:
        """True for a regular file."""
        return not (self.link or self.is_folder)


Tree = Mapping[str, Entry]
"""Entries by path, relative to the tree's folder."""


def read_tree(folder: Path) -> dict[str, Entry]:
    """Return the entries below a folder, which may be missing. Links are kept as links.

    Raises:
        CorruptDataError: it contains something else, such as a named pipe.
    """
    return {path.relative_to(folder).as_posix(): read_entry(path) for path in sorted(folder.rglob("*"))}


def read_entry(path: Path) -> Entry:
    """Return one file, link or folder without its content.

    Raises:
        CorruptDataError: it is something else, such as a named pipe.
    """
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return Entry(link=os.readlink(path), mode=0o777)
    if stat.S_ISDIR(mode):
        return Entry(mode=stat.S_IMODE(mode), is_folder=True)
    if not stat.S_ISREG(mode):
        raise CorruptDataError(f"{path} is neither a file nor a folder nor a link")
    return Entry(path.read_bytes(), stat.S_IMODE(mode))


def add_tree(tar: tarfile.TarFile, tree: Tree, folder: str = "") -> None:
    """Append a tree to a tar archive, below a folder of it. Missing parent folders are added."""
    paths = {PurePosixPath(folder, path): entry for path, entry in tree.items()}
    above = {parent for path in paths for parent in path.parents if str(parent) != "."} - paths.keys()
    for path in sorted({*paths, *above}):
        entry = paths.get(path, Entry(mode=0o755, is_folder=True))
        made = tarfile.TarInfo(str(path))
        made.mode, made.linkname = entry.mode, entry.link
        made.type = tarfile.DIRTYPE if entry.is_folder else tarfile.SYMTYPE if entry.link else tarfile.REGTYPE
        made.size = len(entry.data)
        tar.addfile(made, io.BytesIO(entry.data))


def content_of(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes | None:
    """Return the content of a file, which may be a hard link to an earlier one; None for anything else."""
    if not (entry.isreg() or entry.islnk()):
        return None
    try:
        data = tar.extractfile(entry)
    except KeyError:  # a hard link whose file is not in the archive
        return None
    return None if data is None else data.read()
