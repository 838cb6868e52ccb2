"""BrowserGym's registered tasks, their sites, and the texts of their goals."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from agentgym.envs.gui.site import Folder, Site, Upstream
from agentgym.errors import EnvError, UsageError, require_known


def registered_task(task: str) -> Callable[..., Any]:
    """Import a task family's package and return the function that makes a registered task from a seed.

    Raises:
        UsageError: there is no such task.
    """
    importlib.import_module("browsergym.core")
    family = task.partition(".")[0]
    if importlib.util.find_spec(f"browsergym.{family}") is not None:
        importlib.import_module(f"browsergym.{family}")
    known = [name.removeprefix("browsergym/") for name in gymnasium.registry if name.startswith("browsergym/")]
    require_known("task of BrowserGym", task, known)
    made: Any = gymnasium.make(f"browsergym/{task}", disable_env_checker=True).unwrapped
    found: Callable[..., Any] = made.task_entrypoint
    return found


def site_of(place: str | Site) -> Site | Upstream:
    """Return the site for a folder's path or ``HOST:PORT``. A :class:`Site` is returned unchanged.

    Raises:
        UsageError: the place is neither a folder nor ``HOST:PORT``.
    """
    if not isinstance(place, str):
        return place
    host, _, port = place.rpartition(":")
    if host and port.isdecimal():
        return Upstream(host, int(port))
    if not Path(place).is_dir():
        raise UsageError(f"sites: {place!r} is neither a folder nor HOST:PORT")
    return Folder(Path(place))


def text_of(part: Mapping[str, Any]) -> str:
    """Return a part of a goal as text.

    Raises:
        EnvError: the part is an image.
    """
    if part["type"] != "text":
        raise EnvError("the task's goal holds an image, which is not supported")
    return str(part["text"])
