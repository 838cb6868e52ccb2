"""Environments as the command line names them: a reference, and arguments as ``key=value``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from agentgym.env.env import Env
from agentgym.errors import MissingExtraError, UsageError, unknown_name
from agentgym.registry import EnvEntry, make
from agentgym.settings import read_pair

EnvArgument = Annotated[str, typer.Argument(metavar="ENV", help="An id, module:Id, or path/to/file.py:Id.")]
KwargsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of the environment's class.")
]


def parse_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """``key=value`` pairs; a value is read as JSON if it parses, else taken as text.

    Raises:
        UsageError: a pair without an equals sign, or a key given twice.

    Example:
        >>> parse_pairs(["num_objects=3", "name=kitchen"])
        {'num_objects': 3, 'name': 'kitchen'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, value = read_pair(pair)
        if not key.isidentifier():
            raise UsageError(f"expected key=value, got {pair!r}")
        if key in values:
            raise UsageError(f"{key} is given twice")
        values[key] = value
    return values


def open_env(entry: EnvEntry, kwargs: Mapping[str, Any]) -> Env:
    """Make an environment, its arguments checked against its class.

    Raises:
        UnknownNameError: no such argument; the message names near ones.
        MissingExtraError: the environment needs an extra.
    """
    known = parameters_of(entry)
    for key in kwargs:
        if known is not None and key not in known:
            raise unknown_name(f"argument of {entry.id}:", key, known)
    return make(entry.id, **kwargs)


def parameters_of(entry: EnvEntry) -> dict[str, inspect.Parameter] | None:
    """The arguments an environment takes, or None if it takes any.

    A constructor with ``**kwargs`` takes those of the classes it derives from, too.

    Raises:
        MissingExtraError: the class cannot be imported without its extra.
    """
    made_by = creator_of(entry)
    if not inspect.isclass(made_by):
        found = dict(inspect.signature(made_by).parameters)
        return None if any(p.kind is p.VAR_KEYWORD for p in found.values()) else found
    found = {}
    for owner in made_by.__mro__:
        if "__init__" not in vars(owner):
            continue
        parameters = list(inspect.signature(vars(owner)["__init__"]).parameters.values())[1:]
        found |= {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def creator_of(entry: EnvEntry) -> Any:
    """The class or function that makes an environment.

    Raises:
        MissingExtraError: it cannot be imported without its extra.
    """
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    if not entry.is_available:
        raise MissingExtraError(entry.id, entry.extra or "all-cpu", entry.install)
    entry_point = gymnasium.spec(entry.id).entry_point
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
