"""Values of settings as scripts have them, made plain: numpy's numbers, paths, ranges, options of components."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

from agentgym.errors import UsageError


def plain_changes(what: str, given: object, *, several: bool = False) -> dict[str, Any]:
    """Return settings by path with plain values, as ``config.json`` holds them; empty for None.

    Args:
        what: name of the argument, for messages.
        several: each path has several values, which :func:`plain_values` makes plain.

    Raises:
        UsageError: it is no mapping of paths, or a value cannot be stored.

    Example:
        >>> from pathlib import Path
        >>> plain_changes("changes", {"model.path": Path("a/model"), "env.kwargs": {"sizes": range(2)}})
        {'model.path': 'a/model', 'env.kwargs': {'sizes': [0, 1]}}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{what} must be a dictionary of paths and values, as in {{'env.id': 'Guess-v0'}}, not a "
            f"{type(given).__name__}"
        )
    if wrong := [key for key in given if not isinstance(key, str)]:
        raise UsageError(f"{what} has the key {wrong[0]!r}, expected the path of a setting, as in 'optimizer.lr'")
    return dict(given) if several else {key: plain(key, value) for key, value in given.items()}


def plain_values(what: str, given: object) -> list[object]:
    """Return several values of a setting as plain ones.

    Raises:
        UsageError: it is a single value, or empty, or one of them cannot be stored.

    Example:
        >>> plain_values("seeds", range(3))
        [0, 1, 2]
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable) or not (found := list(given)):
        raise UsageError(f"{what} is {given!r}, expected a list of values")
    return [plain(what, value) for value in found]


def plain(where: str, value: Any) -> object:
    """Return a value as JSON has it.

    Raises:
        UsageError: JSON has nothing like it, as for a function or an environment's class.
    """
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(where, {one.name: getattr(value, one.name) for one in dataclasses.fields(value)})
    if hasattr(value, "tolist"):  # an array, or one of its numbers
        return plain(where, value.tolist())
    for kind in (str, int, float):  # text of an enumeration
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): plain(f"{where}.{key}", one) for key, one in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(where, one) for one in value]
    raise UsageError(
        f"{where} is {value!r}, which cannot be written into a run's folder: give text, numbers and lists, and name "
        "components and environments of your own by their file, as in 'idea.py:mine'"
    )
