"""Changes of a workspace as a patch for ``git apply``.

Text files become unified diffs, which ``patch -p1`` applies, too. Files that are not UTF-8 become binary patches, which
only git applies. Execute permission and symbolic links are part of the patch, as in git; other modes are not.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from agentgym.envs.code.file_tree import Entry, content_of
from agentgym.sandbox import Snapshot

_LEFT_OUT: Final = ("__pycache__", ".pytest_cache")
_LINE_BYTES: Final = 52


def entries_of(snapshot: Snapshot) -> dict[str, Entry]:
    """Return the files and links of a workspace by path, without caches."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(snapshot.tar), mode="r:") as tar:
        for entry in tar:
            path = PurePosixPath(entry.name)
            if any(part in _LEFT_OUT for part in path.parts):
                continue
            if entry.issym():
                found[str(path)] = Entry(link=entry.linkname)
            elif (data := content_of(tar, entry)) is not None:
                found[str(path)] = Entry(data, entry.mode)
    return found


def patch_of(before: Mapping[str, Entry | bytes], after: Mapping[str, Entry | bytes]) -> str:
    """Return the patch between two sets of files, given as entries or as contents.

    Example:
        >>> print(patch_of({"a.py": b"x = 1\\n"}, {"a.py": b"x = 2\\n"}), end="")
        diff --git a/a.py b/a.py
        --- a/a.py
        +++ b/a.py
        @@ -1 +1 @@
        -x = 1
        +x = 2
    """
    pieces: list[str] = []
    for path in sorted({*before, *after}):
        old, new = _entry(before.get(path)), _entry(after.get(path))
        if old is not None and new is not None and bool(old.link) != bool(new.link):  # git has no change of the kind
            pieces += [*_file_patch(path, old, None), *_file_patch(path, None, new)]
        elif old != new:
            pieces += _file_patch(path, old, new)
    return "".join(pieces)


def _entry(value: Entry | bytes | None) -> Entry | None:
    """Return a file with the modes that git knows, and a link with its target as content."""
    if value is None or isinstance(value, bytes):
        return None if value is None else Entry(value)
    if value.link:
        return Entry(os.fsencode(value.link), 0o120000, value.link)
    return replace(value, mode=0o100755 if value.mode & 0o100 else 0o100644)


def _file_patch(path: str, old: Entry | None, new: Entry | None) -> Iterator[str]:
    a, b = _name(f"a/{path}"), _name(f"b/{path}")
    modes = [_mode(entry) for entry in (old, new)]
    before, after = (b"" if entry is None else entry.data for entry in (old, new))
    yield f"diff --git {a} {b}\n"
    if old is None:
        yield f"new file mode {modes[1]}\n"
    elif new is None:
        yield f"deleted file mode {modes[0]}\n"
    elif modes[0] != modes[1]:
        yield f"old mode {modes[0]}\nnew mode {modes[1]}\n"
    if before == after and old is not None and new is not None:
        return
    try:
        old_lines, new_lines = _lines(before), _lines(after)
    except UnicodeDecodeError:
        yield f"index {_blob(old)}..{_blob(new)}{f' {modes[1]}' if modes[0] == modes[1] else ''}\n"
        yield f"GIT binary patch\n{_literal(after)}\n{_literal(before)}\n"
        return
    if not before and not after:
        yield f"index {_blob(old)}..{_blob(new)}\n"
    old_side, new_side = "/dev/null" if old is None else _side(a), "/dev/null" if new is None else _side(b)
    for line in difflib.unified_diff(old_lines, new_lines, old_side, new_side):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _mode(entry: Entry | None) -> str:
    mode = 0o100644 if entry is None else entry.mode
    return f"{mode if mode > 0o100000 else mode | 0o100000:o}"


def _lines(content: bytes) -> list[str]:
    if b"\0" in content:
        raise UnicodeDecodeError("utf-8", content, content.index(b"\0"), content.index(b"\0") + 1, "a binary file")
    lines = content.decode().split("\n")  # not splitlines(), which splits at more characters than patch does
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _name(path: str) -> str:
    """Return a path, in quotes with escapes as git writes it if it has unusual characters."""
    raw = os.fsencode(path)
    is_text = raw.decode(errors="replace") == path
    if is_text and path.isprintable() and not {'"', "\\"} & set(path):
        return path
    return (
        '"' + "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in raw) + '"'
    )


def _side(name: str) -> str:
    return f"{name}\t" if " " in name and not name.startswith('"') else name  # or its end is not known


def _blob(entry: Entry | None) -> str:
    """Return git's name of a content."""
    if entry is None:
        return "0" * 40
    return hashlib.sha1(b"blob %d\0" % len(entry.data) + entry.data, usedforsecurity=False).hexdigest()


def _literal(content: bytes) -> str:
    packed = zlib.compress(content)
    lines = [f"literal {len(content)}\n"]
    for start in range(0, len(packed), _LINE_BYTES):
        part = packed[start : start + _LINE_BYTES]
        length = chr(ord("A") + len(part) - 1) if len(part) <= 26 else chr(ord("a") + len(part) - 27)
        lines.append(f"{length}{base64.b85encode(part, pad=True).decode()}\n")
    return "".join(lines)
