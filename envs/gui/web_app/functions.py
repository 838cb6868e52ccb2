"""Functions that a description of an application names, as ``file.py:name`` beside it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from agentgym.envs.gui.web_app.spec import WebApp
from agentgym.errors import UsageError


def function_of(app: WebApp, reference: str) -> Callable[..., Any]:
    """The function.

    Raises:
        UsageError: there is no such file or function.
    """
    file, _, name = reference.partition(":")
    path = app.here / file
    if not path.is_file():
        raise UsageError(f"application {app.name!r}: no file {str(path)!r}")
    found = _names_of(path, path.stat().st_mtime_ns).get(name)
    if not callable(found):
        raise UsageError(f"application {app.name!r}: no function {name!r} in {str(path)!r}")
    return cast(Callable[..., object], found)


@lru_cache(maxsize=64)
def _names_of(path: Path, stamp: int) -> dict[str, object]:
    return runpy.run_path(str(path))
