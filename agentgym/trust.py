"""Trust in run folders. A folder from another user may name code to run and servers to contact.

Commands sign each ``config.json`` that they write with a key from the user's cache. If the signature of a folder does
not match, the folder comes from elsewhere or was changed. Commands then list the code and servers that it names before
they use any of them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agentgym.cache import cache_folder
from agentgym.canonical import read_json

SIGNATURE_NAME: Final = ".origin"
_KEY: Final = "origin.key"
_REFERENCE = re.compile(r"[^\s:]+:[^\s:]+|\S.*\.py")
"""``module:name``, ``path/to/file.py:name`` and ``path/to/file.py``, all of which are imported."""
_COMMANDS: Final = ("command", "args", "env_vars")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_agreed: set[bytes] = set()
"""Digests of configurations that the user has agreed to in this process, for folders that cannot be written to."""


def sign(folder: Path) -> None:
    """Sign the configuration in a folder, because this user wrote it or agreed to it."""
    with suppress(OSError):  # the folder or cache is read-only, so the user is asked again next time
        _agreed.add((folder / "config.json").read_bytes())
        (folder / SIGNATURE_NAME).write_text(_signature(folder) + "\n", encoding="ascii")


def foreign_parts(folder: Path) -> tuple[str, ...]:
    """Return the entries of a folder's configuration that could do harm; none if the user has signed it.

    These are code to import, servers outside this machine, and commands, each as ``key = value``.
    """
    try:
        written = (folder / "config.json").read_bytes()
        if written in _agreed or _is_own(folder):
            return ()
        config = read_json(written)
    except (OSError, ValueError):
        return ()  # an unreadable file is reported by the code that reads it
    return tuple(f"{path} = {value!r:.200}" for path, value in _harmful(config, ""))


def why_no_key() -> str:
    """Return the reason why this user's folders cannot be signed; empty if they can."""
    try:
        _key()
    except OSError as error:
        return f"{cache_folder()} cannot be written ({error.strerror}); set AGENTGYM_CACHE to a folder of yours"
    return ""


def _is_own(folder: Path) -> bool:
    try:
        found = (folder / SIGNATURE_NAME).read_text(encoding="ascii").strip()
        return hmac.compare_digest(found, _signature(folder))
    except (OSError, ValueError):
        return False


def _signature(folder: Path) -> str:
    return hmac.new(_key(), (folder / "config.json").read_bytes(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Return this user's signing key. It is created once, and other users cannot read it."""
    path = cache_folder() / _KEY
    with suppress(FileNotFoundError):
        return path.read_bytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{_KEY}.{secrets.token_hex(8)}")
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    with suppress(FileExistsError):  # another process created it first
        os.link(made, path)
    made.unlink()
    return path.read_bytes()


def _harmful(value: object, path: str, key: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _harmful(inner, f"{path}.{name}" if path else str(name), str(name))
    elif key in _COMMANDS and value:
        yield path, value
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _harmful(inner, f"{path}.{number}", key)
    elif isinstance(value, str) and _is_harmful(value):
        yield path, value


def _is_harmful(text: str) -> bool:
    if "://" in text:
        with suppress(ValueError):
            return urlsplit(text[text.rfind("http") :]).hostname not in _LOOPBACK
        return True
    return _REFERENCE.fullmatch(text) is not None
