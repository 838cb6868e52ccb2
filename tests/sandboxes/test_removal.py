"""Folders that untrusted code has filled are removed whole, and nothing outside them is touched."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from agentgym.errors import SandboxError
from agentgym.sandboxes.inside.removal import empty_folder, remove_tree
from agentgym.sandboxes.owner import current_owner
from agentgym.sandboxes.pool import SandboxPool
from agentgym.sandboxes.process import ProcessSandbox
from agentgym.sandboxes.reaper import ReapReport, reap_host
from agentgym.sandboxes.run_folder import run_folder

DEPTH = 1100  # beyond the recursion limit and, with these names, the longest path
DEEP = f"""
import os
for _ in range({DEPTH}):
    os.mkdir("deeper")
    os.chdir("deeper")
open("bottom", "w").close()
"""


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder that links lead to; it is the same afterwards."""
    folder = tmp_path / "outside"
    folder.mkdir(mode=0o750)
    (folder / "kept").write_text("kept")
    before = folder.stat()
    yield folder
    after = folder.stat()
    assert (folder / "kept").read_text() == "kept"
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that is gone afterwards, even if the code under test left it: pytest cannot remove what is deep."""
    yield tmp_path / "place"
    subprocess.run(["rm", "-rf", str(tmp_path / "place")], check=True)


def fill(folder: Path, outside: Path) -> None:
    """Make whatever trips a walk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "link").symlink_to(outside)
    (folder / "file link").symlink_to(outside / "kept")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening, chdir(folder):  # such names have at most 107 bytes
        listening.bind("socket")
    closed = folder / "closed" / "twice"
    closed.mkdir(parents=True)
    (closed / "link").symlink_to(outside)
    (closed / "file").touch()
    (folder / os.fsdecode(b"no \xff text")).touch()
    closed.chmod(0)
    closed.parent.chmod(0)
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d" * 8, dir_fd=fd)
        below = os.open("d" * 8, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.symlink(outside, "link", dir_fd=fd)
    os.close(fd)


def test_every_kind_of_entry_goes_and_no_link_is_followed(place: Path, outside: Path) -> None:
    filled = place / "filled"
    fill(filled, outside)
    num_open = len(os.listdir("/proc/self/fd"))
    assert remove_tree(str(filled))
    assert not os.path.lexists(filled)
    filled.symlink_to(outside)
    with pytest.raises(OSError):
        empty_folder(str(filled))
    assert remove_tree(str(filled)) and remove_tree(str(filled))  # the link itself; then nothing
    assert len(os.listdir("/proc/self/fd")) <= num_open  # earlier tests' may be closed meanwhile


def test_the_reaper_goes_on_after_every_bad_entry(place: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = place
    monkeypatch.setenv("AGENTGYM_STATE", str(state))
    dead = json.loads((run_folder() / "owner.json").read_text()) | {"start_ticks": "1"}
    for name in ("a", "z"):
        fill(state / name / "agentgym-0" / "workspace", outside)
        (state / name / "owner.json").write_text(json.dumps(dead))
    notes = {"pid": 2**22 + 1, "start_ticks": "", "uids": [], "cgroups": []}
    evil = [
        *("[" * 100_000, "[]", "null", "1" * 200_000, "\xff"),
        *(json.dumps(notes | change) for change in ({"pid": "1"}, {"pid": -1}, {"uids": [os.getuid()]}, {"uids": 3})),
        *(json.dumps(notes | {"cgroups": [place]}) for place in (str(outside), "/sys/fs/cgroup/agentgym/../..")),
    ]
    for number, text in enumerate(evil):
        (state / f"m{number}").mkdir()
        (state / f"m{number}" / "owner.json").write_text(text)
        (state / "a" / f"{number}.json").write_text(text)
    os.mkfifo(state / "a" / "pipe.json")  # which would be waited for, if it were opened as a file
    (state / "pipe").mkdir()
    os.mkfifo(state / "pipe" / "owner.json")
    (state / "link").symlink_to(outside)
    (state / "file").touch()
    report = ReapReport()
    reap_host(report)
    assert report.folders == [str(state / "a"), str(state / "z")]
    assert (report.processes, report.cgroups, report.problems) == ([], [], [])
    assert run_folder().is_dir() and current_owner().run == run_folder().name


def test_a_pool_survives_deep_folders_and_resets_that_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    with SandboxPool(ProcessSandbox, num_ready=1, max_open=1) as pool:
        with pool.acquire() as sandbox:
            first = sandbox.id
            sandbox.run_python(DEEP)
            sandbox.exec("ln -s /usr link")
        with pool.acquire() as sandbox:
            assert (sandbox.id, sandbox.list()) == (first, ())
            sandbox.run_python(DEEP)
            monkeypatch.setattr(ProcessSandbox, "reset", unexpected)
        for _ in range(3):  # more often than the pool has threads
            with pool.acquire() as sandbox:
                assert sandbox.exec("echo fine").stdout == "fine\n"
        assert pool.num_replaced >= 2


def unexpected(self: ProcessSandbox) -> None:
    raise RecursionError("a fault of our own")


def test_a_workspace_too_deep_to_read_is_refused_and_no_failure_of_the_sandbox() -> None:
    with ProcessSandbox() as sandbox:
        sandbox.run_python(DEEP)
        for read in (sandbox.snapshot, lambda: sandbox.list(recursive=True), lambda: sandbox.read("deeper/" * 2000)):
            with pytest.raises(Exception) as caught:
                read()
            assert not isinstance(caught.value, SandboxError)
        sandbox.reset()
        assert sandbox.list() == ()
