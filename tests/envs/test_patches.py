"""Patches of workspaces: git applies them, and nothing of a change is lost."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agentgym.envs.code.file_tree import Entry, Tree, read_tree
from agentgym.envs.code.patches import entries_of, patch_of
from agentgym.envs.code.swe import SWEEnv
from agentgym.types import Message, ToolCall

X = 0o755
CHANGES: dict[str, tuple[Tree, Tree]] = {
    "a binary file": ({"a.py": Entry(b"x = 1\n")}, {"a.py": Entry(b"x = 2\n"), "out.bin": Entry(b"\xff\x00\x01")}),
    "latin-1": ({"a.txt": Entry("caf\xe9\n1\n".encode("latin-1"))}, {"a.txt": Entry("caf\xe9\n2\n".encode("latin-1"))}),
    "bytes of zero": ({"z": Entry(b"a\0b")}, {"z": Entry(b"a\0c" * 90)}),
    "a binary file that goes": ({"z": Entry(b"\xff" * 200), "k": Entry(b"k")}, {"k": Entry(b"k")}),
    "execute permission": ({"run.sh": Entry(b"true\n")}, {"run.sh": Entry(b"true\n", X)}),
    "no more permission": ({"run.sh": Entry(b"true\n", X)}, {"run.sh": Entry(b"false\n")}),
    "a new program": ({}, {"bin/run.sh": Entry(b"true\n", X)}),
    "a new link": ({"a": Entry(b"a\n")}, {"a": Entry(b"a\n"), "b": Entry(link="a")}),
    "another target": ({"b": Entry(link="a")}, {"b": Entry(link="c/d")}),
    "a link that goes": ({"b": Entry(link="a"), "k": Entry(b"k")}, {"k": Entry(b"k")}),
    "a file in place of a link": ({"b": Entry(link="a")}, {"b": Entry(b"text\n")}),
    "a link in place of a file": ({"b": Entry(b"text\n", X)}, {"b": Entry(link="a")}),
    "an empty file": ({"k": Entry(b"k")}, {"k": Entry(b"k"), "new": Entry(b"")}),
    "an empty file that goes": ({"k": Entry(b"k"), "old": Entry(b"")}, {"k": Entry(b"k")}),
    "text to nothing": ({"k": Entry(b"k\n")}, {"k": Entry(b"")}),
    "unusual names": (
        {"a b.txt": Entry(b"1\n")},
        {"a b.txt": Entry(b"2\n"), 'q"\\t\n.txt': Entry(b"3"), "\xe9.txt": Entry(b"4\n")},
    ),
    "a name that is not UTF-8": ({}, {os.fsdecode(b"caf\xe9.txt"): Entry(b"1\n")}),
    "odd line breaks": ({"a": Entry("a\u2028b\x0cc\r\nd\n".encode())}, {"a": Entry("a\u2028b\x0cc\r\ne".encode())}),
}


def write(folder: Path, tree: Tree) -> None:
    for name, entry in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.link:
            path.symlink_to(entry.link)
        else:
            path.write_bytes(entry.data)
            path.chmod(entry.mode)


def files(tree: Tree) -> dict[str, tuple[bytes, bool, str]]:
    return {
        name: (one.data, not one.link and bool(one.mode & 0o100), one.link)
        for name, one in tree.items()
        if not one.is_folder
    }


@pytest.mark.parametrize("name", CHANGES)
def test_git_applies_it_and_takes_it_back(name: str, tmp_path: Path) -> None:
    before, after = CHANGES[name]
    write(tmp_path, before)
    patch = patch_of(before, after).encode()
    subprocess.run(["git", "apply", "-"], input=patch, cwd=tmp_path, check=True)
    assert files(read_tree(tmp_path)) == files(after)
    subprocess.run(["git", "apply", "-R", "-"], input=patch, cwd=tmp_path, check=True)
    assert files(read_tree(tmp_path)) == files(before)


def test_nothing_is_said_of_what_git_does_not_know() -> None:
    assert patch_of({"a": Entry(b"1", 0o600)}, {"a": Entry(b"1", 0o664)}) == ""


def test_the_patch_of_an_episode(tmp_path: Path) -> None:
    env = SWEEnv(themes=("search",), sandbox="process", max_turns=1)
    try:
        env.reset(seed=0)
        write(tmp_path, entries_of(env._given))
        command = "printf '\\377\\000' > out.bin; chmod +x README.md; ln -s README.md link; ln README.md hard"
        info = env.step(Message("assistant", "", (ToolCall("bash", {"command": command}),)))[4]
        subprocess.run(["git", "apply", "-"], input=info["patch"].encode(), cwd=tmp_path, check=True)
        assert files(read_tree(tmp_path)) == files(entries_of(env._workspace))
        assert (tmp_path / "hard").read_text() == (tmp_path / "README.md").read_text()
    finally:
        env.close()
