"""The folder on this host in which a run records what it started, so that another run can clean up after its death.

``STATE/RUN/owner.json`` names the owner, ``STATE/RUN/ID.json`` lists the parts of a sandbox, and ``STATE/RUN/ID/``
holds its files. STATE is ``$AGENTGYM_STATE``, else ``$XDG_RUNTIME_DIR/agentgym``, else ``/tmp/agentgym-UID``. If the
run is root, code runs as separate users, so a folder that they cannot enter, such as root's ``$XDG_RUNTIME_DIR``, is
skipped.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentgym.errors import SandboxDiskFullError, SandboxUnavailableError
from agentgym.sandboxes.cgroups import is_group
from agentgym.sandboxes.inside.removal import remove_tree
from agentgym.sandboxes.owner import Owner, current_owner

_OWNER, _SHARED = "owner.json", "shared"
_MAX_NOTE_BYTES = 1 << 16
_USERS_BASE, _USERS_PER_OWNER = 1 << 30, 256  # user ids far from those of real users
_slots: set[int] = set()
_slots_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """The parts of a sandbox on this host, in addition to its folder."""

    pid: int
    start_ticks: str
    uids: tuple[int, ...] = ()
    """User ids that only this sandbox has."""
    cgroups: tuple[str, ...] = ()

    def is_of_a_sandbox(self) -> bool:
        """Return True if the record is plausible: no ids of real users, and no folders other than control groups."""
        are_groups = all(is_group(path) for path in self.cgroups)
        return self.pid > 1 and all(uid >= _USERS_BASE for uid in self.uids) and are_groups


def state_folder() -> Path:
    """Return STATE, which is created if it is missing. Raise an error if it belongs to another user."""
    folder = next(filter(_is_for_all_users, _candidates()), next(_candidates()))
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        raise _refusal(error, folder) from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise SandboxUnavailableError(f"{folder} is not a folder of this user; set AGENTGYM_STATE to another one")
    return folder


def _candidates() -> Iterator[Path]:
    given, runtime = os.environ.get("AGENTGYM_STATE"), os.environ.get("XDG_RUNTIME_DIR")
    if given:
        yield Path(given)
        return
    if runtime:
        yield Path(runtime) / "agentgym"
    for shared in (tempfile.gettempdir(), "/tmp"):
        yield Path(shared) / f"agentgym-{os.getuid()}"


def _is_for_all_users(folder: Path) -> bool:
    return os.getuid() != 0 or all(is_open_to_all(parent) for parent in folder.parents if parent.is_dir())


def is_open_to_all(path: Path) -> bool:
    """Return True if every user may enter a folder, or execute a file, at this path."""
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


def run_folder() -> Path:
    """Return STATE/RUN of this process, which is created atomically with its owner's note."""
    owner = current_owner()
    folder = state_folder() / owner.run
    if not folder.is_dir():
        try:
            made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
            made.chmod(0o711)
            (made / _OWNER).write_text(json.dumps(asdict(owner)))
            made.rename(folder)
            atexit.register(_remove_if_empty, folder, os.getpid())
        except FileExistsError:  # another thread created it first
            remove_tree(str(made))
        except OSError as error:
            if folder.is_dir():
                remove_tree(str(made))
            else:
                raise _refusal(error, folder) from error
    return folder


def _remove_if_empty(folder: Path, pid: int) -> None:
    if pid == os.getpid() and folder.is_dir() and {path.name for path in folder.iterdir()} <= {_OWNER, _SHARED}:
        remove_tree(str(folder))


def shared_folder() -> Path:
    """Return STATE/RUN/shared, which can be mounted into sandboxes. Its entries can be opened but not listed."""
    folder = run_folder() / _SHARED
    try:
        folder.mkdir(mode=0o711, exist_ok=True)
        folder.chmod(0o711)  # whatever the umask is
    except OSError as error:
        raise _refusal(error, folder) from error
    return folder


def make_sandbox_folder(sandbox_id: str, modes: Mapping[str, int]) -> Path:
    """Create STATE/RUN/ID with folders of these names and modes."""
    folder = run_folder() / sandbox_id
    try:
        folder.mkdir(mode=0o711)
        for name, mode in modes.items():
            (folder / name).mkdir()
            (folder / name).chmod(mode)  # whatever the umask is
    except OSError as error:
        raise _refusal(error, folder) from error
    return folder


def note(sandbox_id: str, record: SandboxRecord) -> None:
    """Record the parts of a sandbox."""
    path = run_folder() / f"{sandbox_id}.json"
    try:
        path.write_text(json.dumps(asdict(record)))
    except OSError as error:
        raise _refusal(error, path) from error


def forget(sandbox_id: str) -> None:
    """Remove a sandbox's folder and note."""
    folder = run_folder()
    remove_tree(str(folder / sandbox_id))
    (folder / f"{sandbox_id}.json").unlink(missing_ok=True)


def runs() -> Iterator[tuple[Path, Owner]]:
    """Yield folder and owner of every run with notes on this host."""
    for folder in sorted(state_folder().iterdir()):
        try:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                continue
            owner = Owner(**_note_in(folder / _OWNER))
            owner.is_gone()  # raises if the fields are malformed
        # not a run's folder, or one that is being created or removed
        except (OSError, ValueError, TypeError, AttributeError):
            continue
        yield folder, owner


def records(folder: Path) -> Iterator[SandboxRecord]:
    """Yield the records of one run."""
    for path in sorted(folder.glob("*.json")):
        if path.name != _OWNER:
            try:
                given = _note_in(path)
                record = SandboxRecord(
                    pid=int(given["pid"]),
                    start_ticks=str(given["start_ticks"]),
                    uids=tuple(map(int, given["uids"])),
                    cgroups=tuple(map(str, given["cgroups"])),
                )
            except (OSError, ValueError, TypeError, KeyError):  # incomplete, because its owner was killed while writing
                continue
            if record.is_of_a_sandbox():
                yield record


def _note_in(path: Path) -> dict[str, Any]:
    """Return the note in a file.

    Raises:
        OSError: there is no such regular file.
        ValueError: the file does not hold a JSON object, or is too large for a note.
    """
    fd = os.open(
        path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )  # code in a sandbox without isolation can write here
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path} is not a regular file")
        text = file.read(_MAX_NOTE_BYTES + 1)
    try:
        note = json.loads(text) if len(text) <= _MAX_NOTE_BYTES else None
    except RecursionError:
        note = None
    if not isinstance(note, dict):
        raise ValueError(f"{path} is not a note of a sandbox")
    return note


class UserNumbers:
    """Two user ids that no other live sandbox on this host has, until they are given back."""

    def __init__(self) -> None:
        with _slots_lock:
            free = next((slot for slot in range(_USERS_PER_OWNER // 2) if slot not in _slots), None)
            if free is None:
                raise SandboxUnavailableError(f"this process has {len(_slots)} sandboxes open; close some")
            self._slot = free
            _slots.add(free)
        first = _USERS_BASE + (os.getpid() % (1 << 22)) * _USERS_PER_OWNER + 2 * free
        self.agent, self.grader = first, first + 1

    def give_back(self) -> None:
        """Give the user ids back after the sandbox's end."""
        with _slots_lock:
            _slots.discard(self._slot)


def _refusal(error: OSError, path: Path) -> SandboxUnavailableError | SandboxDiskFullError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SandboxDiskFullError(f"no space left for {path}; free some, or set AGENTGYM_STATE to another disk")
    return SandboxUnavailableError(f"{path}: {error.strerror}; set AGENTGYM_STATE to a folder that can be written")
