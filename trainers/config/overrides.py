"""Functions that read configurations: ``a.b=value`` overrides, and the JSON copy saved with each run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from agentgym.canonical import read_json, shell_word
from agentgym.errors import ConfigError, CorruptDataError, UnknownNameError, UsageError, unknown_name
from agentgym.plugins import ByKind
from agentgym.rollout.kept_files import FOLDER, keep_files
from agentgym.rollout.record import read_json_object
from agentgym.rollout.run_kind import kind_of_run, runs_in
from agentgym.settings import checked, field_types, read_pair
from agentgym.trainers.config.train import TrainConfig
from agentgym.trust import sign

OURS = "agentgym/"
"""Namespace of the library's environments, which an id may leave out."""


def apply_overrides(config: TrainConfig, overrides: Sequence[str]) -> TrainConfig:
    """Return a copy of the configuration with values replaced.

    Args:
        config: the configuration to change.
        overrides: ``path.to.key=value``; a value is read as JSON if it parses, else as text.

    Raises:
        UnknownNameError: a key does not exist; the message suggests similar keys.
        ConfigError: a value has the wrong type or is out of range.

    Example:
        >>> from agentgym.trainers.config.train import EnvConfig
        >>> config = TrainConfig(recipe="x", env=EnvConfig(id="Guess-v0"))
        >>> apply_overrides(config, ["group.group_size=4"]).group.group_size
        4
    """
    return _changed(config, map(read_pair, overrides))


def without_arguments_of_its_env(config: TrainConfig, overrides: Sequence[str]) -> tuple[TrainConfig, str]:
    """Return a recipe without its environment's arguments if the overrides name another environment, and a note.

    The configuration is the same, and the note empty, if nothing is left out or the overrides set ``env.kwargs``.

    Example:
        >>> from agentgym.trainers.config.train import EnvConfig
        >>> config = TrainConfig(recipe="x", env=EnvConfig(id="Guess-v0", kwargs={"largest": 4}))
        >>> changed, note = without_arguments_of_its_env(config, ["env.id=Maze-v0"])
        >>> changed.env.kwargs, note
        ({}, 'note: largest=4 is for Guess-v0, and is left out for Maze-v0')
    """
    given, own = dict(map(read_pair, overrides)), config.env
    other = given.get("env.id", own.id)
    arguments = {**own.kwargs, **config.eval.kwargs}
    if not arguments or "env.kwargs" in given or str(other).removeprefix(OURS) == own.id.removeprefix(OURS):
        return config, ""
    listed = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
    verb = "is" if len(arguments) == 1 else "are"
    note = f"note: {listed} {verb} for {own.id}, and {verb} left out for {other}"
    changed = dataclasses.replace(
        config, env=dataclasses.replace(own, kwargs={}), eval=dataclasses.replace(config.eval, kwargs={})
    )
    return changed, note


def apply_changes(config: TrainConfig, changes: Mapping[str, object]) -> TrainConfig:
    """Return a copy of the configuration with values replaced; the keys of ``changes`` are paths.

    Raises:
        UnknownNameError: a key does not exist; the message suggests similar keys.
        ConfigError: a value has the wrong type or is out of range.

    Example:
        >>> from agentgym.trainers.config.train import EnvConfig
        >>> config = TrainConfig(recipe="x", env=EnvConfig(id="Guess-v0"))
        >>> apply_changes(config, {"group.group_size": 4, "env.kwargs.max_turns": 3}).env.kwargs
        {'max_turns': 3}
    """
    return _changed(config, changes.items())


def _changed(config: TrainConfig, changes: Iterable[tuple[str, object]]) -> TrainConfig:
    tree = to_dict(config)
    for path, value in changes:
        keys = path.split(".")
        is_free = _make_way(tree, TrainConfig, keys)
        _set(tree, keys, _filled(TrainConfig, keys, value), path, is_free=is_free)
    return from_dict(tree)


def _make_way(tree: dict[str, Any], kind: Any, keys: Sequence[str]) -> bool:
    """Add what a path leads through and users name: a role, or a group of a mapping's keys. Return True if it is free.

    A path is free below a mapping of any values, which is checked by what reads it: the environment, the chat template.
    """
    node: Any = tree
    for at, key in enumerate(keys):
        if get_origin(kind) is Mapping:
            kind = get_args(kind)[1]
            if not dataclasses.is_dataclass(kind):
                return _open_groups(node, keys[at:-1])
            if at < len(keys) - 1:
                made: Any = kind
                node = node.setdefault(key, dataclasses.asdict(made()))
            continue
        if not dataclasses.is_dataclass(kind) or not isinstance(node, dict) or key not in node:
            return False
        kind = field_types(kind, with_annotations=True).get(key)
        node = node[key]
    return False


def _open_groups(node: Any, keys: Sequence[str]) -> bool:
    """Add groups of keys to free ones; return False if one is a value, which has no keys below it."""
    for key in keys:
        node = node.setdefault(key, {})
        if not isinstance(node, dict):
            return False
    return True


def _filled(kind: Any, keys: Sequence[str], value: object) -> object:
    """Return a group of keys with the defaults of those that it leaves out, so that later changes can set them.

    Args:
        kind: the type in which ``keys`` lead to the value.
    """
    for extra in getattr(kind, "__metadata__", ()):
        if isinstance(extra, ByKind) and not keys:
            return extra.filled(value)
    if get_origin(kind) is Mapping and keys:
        return _filled(get_args(kind)[1], keys[1:], value)
    if get_origin(kind) is Mapping and isinstance(value, Mapping):
        return {name: _filled(get_args(kind)[1], [], one) for name, one in value.items()}
    if not dataclasses.is_dataclass(kind):  # free keys, or one of several types
        return value
    hints = field_types(kind, with_annotations=True)
    if keys:
        return _filled(hints.get(keys[0]), keys[1:], value)
    return _with_defaults(kind, hints, value) if isinstance(value, Mapping) else value


def _with_defaults(kind: Any, hints: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, object]:
    filled: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        if field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
            is_group = dataclasses.is_dataclass(made) and not isinstance(made, type)
            filled[field.name] = dataclasses.asdict(made) if is_group else made
        elif field.default is not dataclasses.MISSING:
            filled[field.name] = field.default
    return filled | {name: _filled(hints.get(name), [], each) for name, each in given.items()}


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration as plain nested dicts; ``envs`` is empty in a run on one environment."""
    return dataclasses.asdict(config) | ({} if config.is_mixture else {"envs": ()})


def from_dict(tree: Mapping[str, object], *, ignores_unknown: bool = False) -> TrainConfig:
    """Build a configuration from plain nested dicts, and check it.

    Args:
        ignores_unknown: leave out keys that do not exist, as those of runs by other versions.

    Raises:
        UnknownNameError: a key does not exist; the message suggests similar keys.
        ConfigError: a value is wrong; the message names the first wrong key and what was expected.
    """
    return checked(TrainConfig, tree, ignores_unknown=ignores_unknown)


def save_config(config: TrainConfig, path: Path) -> None:
    """Write the resolved configuration into the run's folder, with copies of users' files, and this user's signature.

    A configuration that is there keeps its copies, since the run was begun with them.
    """
    kept = read_json_object(path).get(FOLDER)
    saved = to_dict(config)
    saved = saved | {FOLDER: kept} if kept else keep_files(path.parent, saved)
    path.write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
    sign(path.parent)


def load_config(path: Path) -> TrainConfig:
    """Read a configuration that :func:`save_config` wrote.

    Raises:
        CorruptDataError: the file is missing or is not a configuration.
    """
    if not path.parent.is_dir():
        raise UsageError(f"no folder {str(path.parent)!r}; name that of a training run")
    if not path.is_file():
        raise CorruptDataError(f"{path.parent} is not a training run: it has no {path.name}{runs_in(path.parent)}")
    if kind_of_run(path.parent) == "evaluation":
        raise UsageError(
            f"{path.parent} is an evaluation, not a training run: "
            f"agentgym eval --resume {shell_word(path.parent)} continues it"
        )
    try:
        return from_dict(read_json(path.read_text(encoding="utf-8")), ignores_unknown=True)
    except ValueError as error:
        raise CorruptDataError(f"{path} is not a training configuration: {error}") from error


def _endings(tree: Mapping[str, Any], path: str, above: str = "") -> list[str]:
    """Return at most three keys whose last parts are ``path``, those of the fewest parts first."""
    found = []
    for name, value in tree.items():
        whole = f"{above}{name}"
        found += [whole] if whole.endswith(f".{path}") else []
        found += _endings(value, path, f"{whole}.") if isinstance(value, dict) else []
    return sorted(found, key=lambda one: (one.count("."), one))[:3]


def _set(tree: dict[str, object], keys: list[str], value: object, path: str, *, is_free: bool) -> None:
    *parents, last = keys
    node: Any = tree
    if keys[0] not in tree and (near := _endings(tree, path)):
        raise UnknownNameError(f"unknown key {path!r}; did you mean {' or '.join(map(repr, near))}?")
    for depth, key in enumerate(parents):
        if key not in node:
            raise unknown_name("key", path, [".".join([*parents[:depth], name]) for name in node])
        node = node[key]
        if not isinstance(node, dict):
            raise ConfigError(f"{path}: {'.'.join(parents[: depth + 1])} is a value and has no keys below it")
    if last not in node and not is_free:
        own = ".".join([*parents, "kwargs", last])
        hint = f"arguments of the environment are set as {own}" if "kwargs" in node else ""
        raise unknown_name("key", path, [".".join([*parents, name]) for name in node], hint)
    if isinstance(node.get(last), dict) and not isinstance(value, dict):
        inside = ", ".join(f"{path}.{name}" for name in node[last])
        raise ConfigError(f"{path} is a group of keys; set one of {inside or 'its keys'}")
    node[last] = value
