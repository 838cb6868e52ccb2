"""Tokens of servers: made at start, and found by clients of the same user on this machine.

A server keeps its token in ``servers/PORT.json`` while it runs, readable by this user alone, in ``$AGENTGYM_STATE``,
``$XDG_RUNTIME_DIR/agentgym`` or ``/tmp/agentgym-UID``. A client of a loopback address reads it there. Other clients
take it from a file or from ``AGENTGYM_SERVER_TOKEN``.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from agentgym.errors import UsageError
from agentgym.web_guard import is_loopback

TOKEN_VARIABLE: Final = "AGENTGYM_SERVER_TOKEN"
_NUM_BYTES: Final = 24
_remembered: dict[str, str] = {}  # by host and port


def made_token() -> str:
    """Return a new token that nobody can guess."""
    return secrets.token_urlsafe(_NUM_BYTES)


def token_in(path: Path, option: str) -> str:
    """Return the token in a file.

    Args:
        path: the file.
        option: name of the option that gave the path, for errors.

    Raises:
        UsageError: the file cannot be read, or is empty.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option}: {error}") from error
    if not token:
        raise UsageError(f"{option}: {path} is empty")
    return token


def token_for(url: str) -> str:
    """Return the token for a server; empty if none is known.

    One that was remembered for its address comes first, then ``AGENTGYM_SERVER_TOKEN``, then the one that the server
    keeps on this machine.

    Args:
        url: address of the server, as clients name it.
    """
    return _remembered.get(_place(url), "") or os.environ.get(TOKEN_VARIABLE, "") or kept_token(url)


def remember_token(url: str, token: str) -> None:
    """Remember the token of a server elsewhere for the clients of this process.

    Args:
        url: address of the server, as clients name it.
        token: its token; nothing is remembered if it is empty.
    """
    if token:
        _remembered[_place(url)] = token


def _place(url: str) -> str:
    """Return the host and port of an address; empty for a text that is none."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def kept_token(url: str) -> str:
    """Return the token that a server on this machine keeps for its user's clients; empty if there is none."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        return ""
    return _kept(port) if port and is_loopback(host) else ""


def add_token(request: Any) -> Any:
    """Add the token to a request of httpx, for its argument ``auth``; at each request, since servers come back anew."""
    token = token_for(str(request.url))
    if token:
        request.headers["Authorization"] = f"Bearer {token}"
    return request


@contextmanager
def keeping_token(port: int, token: str) -> Iterator[None]:
    """Keep the token of a server of this process where clients of this user find it, until the block ends.

    Args:
        port: port of the server.
        token: its token; empty if it needs none.
    """
    path = _path(port)
    with suppress(OSError):  # clients are then given the token that the server has printed
        path.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o711)  # sandboxes' users enter this one, too
        path.parent.mkdir(exist_ok=True, mode=0o700)
        if path.parent.stat().st_uid != os.getuid():
            raise PermissionError("another user's folder")
        partial = path.with_suffix(f".{os.getpid()}")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "token": token}, file)
        partial.replace(path)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            if json.loads(path.read_text(encoding="utf-8"))["pid"] == os.getpid():
                path.unlink()


def _kept(port: int) -> str:
    path = _path(port)
    try:
        if path.stat().st_uid != os.getuid():
            return ""
        kept = json.loads(path.read_text(encoding="utf-8"))
        os.kill(int(kept["pid"]), 0)  # a killed server leaves its file
        return str(kept["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _path(port: int) -> Path:
    given, runtime = os.environ.get("AGENTGYM_STATE"), os.environ.get("XDG_RUNTIME_DIR")
    shared = Path(tempfile.gettempdir()) / f"agentgym-{os.getuid()}"
    state = Path(given) if given else Path(runtime) / "agentgym" if runtime else shared
    return state / "servers" / f"{port}.json"
