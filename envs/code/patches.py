"""A workspace's changes as a patch that ``git apply`` and ``patch -p1`` take."""

from __future__ import annotations

import difflib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from agentgym.sandbox import Snapshot

_LEFT_OUT: Final = ("__pycache__", ".pytest_cache")


def files_of(snapshot: Snapshot) -> dict[str, bytes]:
    """The files of a workspace by path; links and caches are left out."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(snapshot.tar), mode="r:") as tar:
        for entry in tar:
            path = PurePosixPath(entry.name)
            if not entry.isreg() or any(part in _LEFT_OUT for part in path.parts):  # tarfile follows links, and fails
                continue
            data = tar.extractfile(entry)
            if data is not None:
                found[os.fsencode(path).decode(errors="backslashreplace")] = data.read()
    return found


def patch_of(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """The unified diff between two sets of files, by path; files that are not UTF-8 are named, not shown.

    Example:
        >>> print(patch_of({"a.py": b"x = 1\\n"}, {"a.py": b"x = 2\\n"}), end="")
        diff --git a/a.py b/a.py
        --- a/a.py
        +++ b/a.py
        @@ -1 +1 @@
        -x = 1
        +x = 2
    """
    return "".join(
        text
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
        for text in _file_patch(path, before.get(path), after.get(path))
    )


def _file_patch(path: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    yield f"diff --git a/{path} b/{path}\n"
    if before is None:
        yield "new file mode 100644\n"
    if after is None:
        yield "deleted file mode 100644\n"
    try:
        old, new = _lines(before), _lines(after)
    except UnicodeDecodeError:
        yield f"Binary files {_side('a', path, before)} and {_side('b', path, after)} differ\n"
        return
    for line in difflib.unified_diff(old, new, _side("a", path, before), _side("b", path, after)):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(content: bytes | None) -> list[str]:
    text = (content or b"").decode()
    lines = text.split("\n")  # not splitlines(), which knows more ends of lines than patch does
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _side(letter: str, path: str, content: bytes | None) -> str:
    return "/dev/null" if content is None else f"{letter}/{path}"
