"""File operations on the workspace, run inside the sandbox by a process with the agent's rights.

A link that leads out of the workspace therefore gives access to nothing that the agent could not read itself. It is
still rejected, since a tool must report only files of the workspace.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import tarfile  # imported here and not in the job, before untrusted files exist
from contextlib import suppress
from typing import IO, Any

from agentgym.sandboxes.inside.removal import empty_folder

CHUNK = 1 << 16
MAX_ENTRIES = 10_000


class Refused(Exception):
    """An error for a rejected request; its arguments are the error type and the message."""


def inside(workspace: str, path: str) -> str:
    """Return the real path of a file or folder in the workspace."""
    real, root = os.path.realpath(os.path.join(workspace, path)), os.path.realpath(workspace)
    if real != root and not real.startswith(root + os.sep):
        raise Refused("outside_workspace", f"{path}: outside the workspace")
    return real


def folder_in(workspace: str, path: str) -> str:
    """Return the real path of a folder in the workspace."""
    real = inside(workspace, path)
    if not os.path.isdir(real):
        raise Refused("is_a_file" if os.path.exists(real) else "not_found", f"{path}: no such folder")
    return real


def read_file(workspace: str, request: dict[str, Any]) -> None:
    """Write a file to standard output."""
    path = inside(workspace, request["path"])
    if not os.path.lexists(path):
        raise Refused("not_found", f"{request['path']}: no such file")
    info = os.stat(path)
    _regular(request["path"], info.st_mode)
    if info.st_size > request["output_bytes"]:
        raise Refused("too_large", f"{request['path']}: {info.st_size} bytes, at most {request['output_bytes']}")
    with open(path, "rb") as file:
        _copy(file, sys.stdout.buffer)


def write_file(workspace: str, request: dict[str, Any]) -> None:
    """Write standard input to a file."""
    path = inside(workspace, request["path"])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error instead of the end of the process (SIGXFSZ)
    if os.path.exists(path):
        _regular(request["path"], os.stat(path).st_mode)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        _copy(sys.stdin.buffer, file)


def list_folder(workspace: str, request: dict[str, Any]) -> None:
    """Write the entries of a folder to standard output as JSON."""
    root = os.path.realpath(workspace)
    found: list[tuple[str, int, str]] = []
    folders = [folder_in(workspace, request["path"])]
    while folders:
        for entry in os.scandir(folders.pop()):
            if len(found) == MAX_ENTRIES:
                raise Refused("too_many", f"{request['path']}: more than {MAX_ENTRIES} entries")
            info = entry.stat(follow_symlinks=False)
            kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
            kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
            found.append((os.path.relpath(entry.path, root), info.st_size if kind == "file" else 0, kind))
            if kind == "folder" and request["recursive"]:
                folders.append(entry.path)
    sys.stdout.write(json.dumps(found))


def save_files(workspace: str, request: dict[str, Any]) -> None:
    """Write the workspace's files to standard output as a tar archive."""
    _check_amount(workspace, request["max_bytes"])
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(os.listdir(workspace)):
            tar.add(os.path.join(workspace, name), arcname=name)


def _check_amount(workspace: str, max_bytes: int) -> None:
    """Raise an error for a workspace that would take too much time or host memory to read.

    Sizes are those of the content, since a sparse file takes no space on disk but all of it in a tar archive.
    """
    num_entries, num_bytes = 0, 0
    folders = [workspace]
    while folders:
        for entry in os.scandir(folders.pop()):
            info = entry.stat(follow_symlinks=False)
            num_entries += 1
            num_bytes += info.st_size if stat.S_ISREG(info.st_mode) else 0
            if num_entries > MAX_ENTRIES:
                raise Refused("too_many", f"the workspace has more than {MAX_ENTRIES} entries")
            if num_bytes > max_bytes:
                raise Refused("too_large", f"the files of the workspace have more than {max_bytes} bytes")
            if stat.S_ISDIR(info.st_mode):
                folders.append(entry.path)


def load_files(workspace: str, _request: dict[str, object]) -> None:
    """Replace the content of the workspace by the tar archive on standard input."""
    empty(workspace)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
        # the archive is our own; links out of the workspace belong to its content
        if hasattr(tarfile, "fully_trusted_filter"):
            tar.extraction_filter = tarfile.fully_trusted_filter
        tar.extractall(workspace)


OPERATIONS = {
    "read": read_file,
    "write": write_file,
    "list": list_folder,
    "snapshot": save_files,
    "restore": load_files,
}


def empty(place: str) -> None:
    """Remove the content of a folder and the extended attributes of the folder itself, as far as possible."""
    with suppress(OSError):
        for name in os.listxattr(place):
            os.removexattr(place, name)
        os.chmod(place, 0o755)  # possible for its own folder only; shared folders may not be changed
    with suppress(OSError):
        empty_folder(place)


def _regular(name: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise Refused("is_a_folder", f"{name}: is a folder")
    if not stat.S_ISREG(mode):
        raise Refused("not_a_file", f"{name}: is no regular file")


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    while data := source.read(CHUNK):
        target.write(data)
