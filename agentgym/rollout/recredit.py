"""Recompute credit from a run's records: read them as batches, and configure the requested estimators.

An estimator uses the run's own ``credit`` settings as far as they apply, so that only the estimator differs. If they do
not fit together, it uses its defaults, and a note says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.credit import rules
from agentgym.credit.columns import FROM_GROUPS, join_columns
from agentgym.credit.component import ESTIMATORS
from agentgym.credit.config import FLAT_KEYS, CreditConfig
from agentgym.credit.credited import credit_columns
from agentgym.credit.recredit import RecordedBatch, has_memory, missing_columns
from agentgym.errors import ConfigError, CorruptDataError, UsageError, unknown_name
from agentgym.plugins import kind
from agentgym.rollout.record import GroupRecord, read_json_object, read_records, record_path, recorded_steps
from agentgym.rollout.run_kind import saved_envs
from agentgym.rollout.token_scores import Key, TurnScores, read_scores, scores_path
from agentgym.settings import checked, read_pair

ENTROPIES = ("entropy", "token_entropy")
"""Columns that can be read from the scores of trained tokens."""
KEYS = tuple(field.name for field in fields(CreditConfig))
Setting = tuple[tuple[str, ...], object]
"""Path below ``credit``, and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecreditPlan:
    """The estimators with their settings, and notes for the user."""

    configs: Mapping[str, CreditConfig]
    own: CreditConfig | None
    """The run's own settings; None if it has none, or if records lack data that they need."""
    notes: tuple[str, ...]
    env_name: str = ""
    """Environment whose groups are credited, in a run that mixes several."""


# ------------------------------------------------------------------------------------------------------- records


def select_steps(run_dir: Path, first: int | None, last: int | None) -> tuple[int, ...]:
    """Return the recorded steps from ``first`` to ``last``, both included and counted from 0; None for no bound.

    Raises:
        UsageError: there is no such folder, or no recorded step in that range.
        CorruptDataError: the folder has no records.
    """
    if not run_dir.is_dir():
        raise UsageError(f"no folder {str(run_dir)!r}; name the folder of a training run")
    there = recorded_steps(run_dir)
    if not there:
        raise CorruptDataError(
            f"{run_dir} has no recorded rollouts (rollouts/step-*.jsonl.gz); name the folder of a training run"
        )
    wanted = tuple(step for step in there if (first or 0) <= step and (last is None or step <= last))
    if not wanted:
        asked = f"{(first or 0) + 1}:{'' if last is None else last + 1}"
        raise UsageError(f"no step of {asked} is recorded; {run_dir} has steps {there[0] + 1} to {there[-1] + 1}")
    return wanted


def check_env_name(run_dir: Path, name: str) -> None:
    """Check that a name is an environment of the run's mixture, or empty for a run on one environment.

    Raises:
        UsageError: the name is wrong; the message names the environments.
    """
    names = [env["name"] for env in saved_envs(read_json_object(run_dir / "config.json"))]
    if name and names == [""]:
        raise UsageError(f"{run_dir} was trained on one environment: leave --env out")
    if name not in names:
        raise UsageError(f"{run_dir} was trained on several environments: choose one with --env {'|'.join(names)}")


def read_batches(
    run_dir: Path, steps: Sequence[int], configs: Mapping[str, CreditConfig], env_name: str = ""
) -> Iterator[RecordedBatch]:
    """Yield the records of the steps, and of all earlier steps if an estimator has a memory.

    Args:
        env_name: the environment of a mixture whose groups are wanted.

    Raises:
        CorruptDataError: a record cannot be read, or its credit does not match its episodes.
    """
    if any(has_memory(config) for config in configs.values()):
        steps = [step for step in recorded_steps(run_dir) if step <= max(steps)]
    read = {name for config in configs.values() for name in config.columns() if name in ENTROPIES}
    for step in steps:
        path = record_path(run_dir, step)
        records = _of_env(read_records(path), env_name)
        if records and (unknown := read - records[0].columns.keys()):
            scores = read_scores(run_dir, step)
            records = tuple(filter(None, (_with_entropies(record, scores, unknown) for record in records)))
        batch = RecordedBatch(
            step=step,
            groups=tuple(record.group for record in records),
            credit=tuple(record.credit for record in records),
            dropped=tuple(record.dropped for record in records),
            columns=join_columns([record.columns for record in records]),
        )
        try:
            credit_columns(batch.groups, batch.credit)
        except CorruptDataError as error:
            raise CorruptDataError(f"{path}: {error}") from error
        yield batch


def _with_entropies(
    record: GroupRecord, scores: Mapping[Key, TurnScores], names: Collection[str]
) -> GroupRecord | None:
    """Return a group with its turns' entropies among the columns, None if a turn has none because it did not train."""
    entropies: list[tuple[float | None, ...]] = []
    for member, trajectory in enumerate(record.group.trajectories):
        for turn in trajectory.turns if trajectory.status.is_evidence else ():
            of_turn = scores.get((record.group.ordinal, member, turn.index))
            if of_turn is None or None in of_turn.entropies or len(of_turn.entropies) != len(turn.completion.token_ids):
                return None
            entropies.append(of_turn.entropies)
    tokens = [value for row in entropies for value in row]
    means = [float(np.mean(np.array(row, dtype=np.float64))) for row in entropies]
    found: dict[str, list[Any]] = {"entropy": means, "token_entropy": tokens}
    return replace(record, columns={**record.columns, **{name: found[name] for name in names}})


def read_scored_columns(run_dir: Path) -> tuple[str, ...]:
    """Return the columns that the run's token scores hold for turns that were trained; empty without scores."""
    return ENTROPIES if any(scores_path(run_dir, step).is_file() for step in recorded_steps(run_dir)) else ()


def _of_env(records: Iterable[GroupRecord], env_name: str) -> tuple[GroupRecord, ...]:
    return tuple(record for record in records if record.group.env_name == env_name)


def read_held_columns(run_dir: Path, env_name: str = "") -> tuple[str, ...]:
    """Return the columns that the run recorded: the model outputs that its credit used.

    Raises:
        CorruptDataError: the first record cannot be read.
    """
    for step in recorded_steps(run_dir):
        if records := _of_env(read_records(record_path(run_dir, step)), env_name):
            return tuple(join_columns([record.columns for record in records]))
    return ()


def read_credit_settings(run_dir: Path, env_name: str = "") -> Mapping[str, object] | None:
    """Return the section ``credit`` of the run's ``config.json``; None if there is no such file or section.

    Args:
        env_name: the environment of a mixture, whose own values override the run's.

    Raises:
        CorruptDataError: the file is not JSON or does not contain settings.
    """
    path = run_dir / "config.json"
    config = read_json_object(path)
    settings = config.get("credit")
    if settings is None:
        return None
    if not isinstance(settings, dict):
        raise CorruptDataError(f"{path}: credit holds a {type(settings).__name__}, expected an object")
    own: Mapping[str, Any] = next((env.get("credit", {}) for env in saved_envs(config) if env["name"] == env_name), {})
    return {**settings, **own}


# ------------------------------------------------------------------------------------------------ configurations


def plan_recredit(
    estimators: Sequence[str],
    settings: Mapping[str, object] | None,
    overrides: Sequence[str] = (),
    held: Collection[str] = (),
    scored: Collection[str] = (),
) -> RecreditPlan:
    """Return configurations of the named estimators.

    Args:
        estimators: names of estimators.
        settings: the run's own settings, from :func:`read_credit_settings`.
        overrides: ``credit.key=value``, as for ``agentgym train``; each applies to the estimators that read it.
        held: columns on record beside the episodes, as :func:`read_held_columns` gives them.
        scored: columns on record for trained turns alone, as :func:`read_scored_columns` gives them.

    Raises:
        UnknownNameError: there is no such estimator or key; the message names similar ones.
        ConfigError: an estimator needs data that records do not hold, or a value is invalid.
        CorruptDataError: ``settings`` cannot be read as settings.

    Example:
        >>> plan = plan_recredit(["gigpo", "rloo"], {"estimator": "gigpo", "gamma": 0.9})
        >>> [config.gamma for config in plan.configs.values()], plan.notes
        ([0.9, 0.95], ("rloo does not read the run's credit.gamma",))
    """
    names = tuple(dict.fromkeys(name.strip() for name in estimators if name.strip()))
    if not names:
        raise UsageError("name at least one estimator: --estimator gigpo,grpo")
    asked = [_parse(override) for override in overrides]
    for number, (keys, _) in enumerate(asked):
        if keys in [other for other, _ in asked[:number]]:
            raise ConfigError(f"credit.{'.'.join(keys)} is set twice; set it once")
    notes: list[str] = []
    scored, held = {*scored} - {*held}, {*held, *scored}
    if settings is None:
        notes.append("the run has no settings of credit on record: every estimator has its defaults")
    own = _own_config(settings, notes, held)
    for name in names:
        # this loads a user's file; those of the run are loaded already, so their short names are known
        _ = ESTIMATORS[name]
    known: list[Setting] = [((key,), value) for key, value in (settings or {}).items() if key in KEYS]
    configs = {name: _config_for(name, known, asked, notes) for name in names}
    for setting in asked:
        if not any(_reads(name, setting) for name in names):
            raise ConfigError(f"none of {', '.join(names)} reads credit.{'.'.join(setting[0])}")
    _refuse_missing(configs.values(), held)
    if any({*config.columns()} & scored for config in configs.values()):
        notes.append("entropies are on record for trained turns alone: groups that were not trained are left out")
    return RecreditPlan(configs=configs, own=own, notes=tuple(notes))


def possible_estimators(held: Collection[str] = ()) -> tuple[str, ...]:
    """Return the estimators whose defaults need only data that records hold.

    Args:
        held: columns on record beside the episodes.

    Example:
        >>> "gigpo" in possible_estimators(), "turn_gae" in possible_estimators()
        (True, False)
    """
    return tuple(name for name in sorted(ESTIMATORS) if not missing_columns(_config(name, ()), held))


def _refuse_missing(configs: Iterable[CreditConfig], held: Collection[str]) -> None:
    needs = [
        f"{component.name} needs the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        for config in configs
        for component, options in config.components()
        if (missing := [name for name in component.columns(options) if name not in (*FROM_GROUPS, *held)])
    ]
    if needs:
        raise ConfigError(
            f"{'; '.join(dict.fromkeys(needs))}, which this run's records do not hold (docs/credit.md says who makes "
            f"them); from them one can credit by {', '.join(possible_estimators(held))}"
        )


def _own_config(settings: Mapping[str, object] | None, notes: list[str], held: Collection[str]) -> CreditConfig | None:
    if settings is None:
        return None
    try:
        own = checked(CreditConfig, settings, "credit", ignores_unknown=True)
    except ConfigError as error:
        raise CorruptDataError(f"the run's credit settings cannot be read: {error}") from error
    if missing := missing_columns(own, held):
        notes.append(
            f"the recorded credit cannot be recomputed to check it: it needs the columns {', '.join(missing)}, which "
            "records of rollouts do not hold"
        )
        return None
    return own


def _config_for(name: str, known: Sequence[Setting], asked: Sequence[Setting], notes: list[str]) -> CreditConfig:
    """Return the run's settings with another estimator. If the two do not fit, note it and return its defaults."""
    defaults = CreditConfig()
    notes += [
        f"{name} does not read the run's credit.{path[0]}"
        for path, value in known
        if path[0] in FLAT_KEYS and value != getattr(defaults, path[0]) and not _reads(name, (path, value))
    ]
    notes += [f"{name} does not read credit.{'.'.join(s[0])}" for s in asked if not _reads(name, s)]
    asked = [setting for setting in asked if _reads(name, setting)]
    try:
        return _config(name, [*(setting for setting in known if _reads(name, setting)), *asked])
    except ConfigError as error:
        try:
            config = _config(name, asked)
        except ConfigError:
            raise error from None
        notes.append(f"{name} has its defaults, since the run's settings do not go with it: {error}")
        return config


def _parse(override: str) -> Setting:
    path, value = read_pair(override)
    keys = tuple(path.removeprefix("credit.").split("."))
    if keys[0] == "estimator":
        raise ConfigError("name estimators with --estimator, not with --set")
    if keys[0] not in KEYS:
        known = [f"credit.{key}" for key in KEYS if key != "estimator"]
        raise unknown_name("key", path, known, "--set takes the keys of credit alone")
    most = 2 if keys[0] == "options" else 1
    if len(keys) > most:
        raise ConfigError(f"{path}: credit.{'.'.join(keys[:most])} has no keys below it; set it as a whole, as JSON")
    return keys, value


def _reads(name: str, setting: Setting) -> bool:
    """Return True if an estimator reads a setting: a flat key by CreditConfig's rule, or one of its options."""
    path, value = setting
    if path[0] != "options":
        return path[0] not in FLAT_KEYS or ESTIMATORS[name].reads(path[0])
    made = ESTIMATORS[name].options
    if len(path) == 1:
        of = value.get("kind", name) if isinstance(value, dict) else ""
        return isinstance(of, str) and of.rpartition(":")[2] == name.rpartition(":")[2]
    return made is not None and path[1] in {field.name for field in fields(made)}


def _config(name: str, settings: Sequence[Setting]) -> CreditConfig:
    """Build an estimator's configuration, with the shaper that it needs.

    Raises:
        ConfigError: a key is wrong; the message names the first one and what was expected.
    """
    tree: dict[str, Any] = {}
    for path, value in settings:
        if len(path) == 1:
            tree[path[0]] = value
        else:
            tree["options"] = {"kind": name, **tree.get("options", {}), path[1]: value}
    shapers = tree.get("shapers") or ()
    if isinstance(shapers, list | tuple) and rules.needs_gain(name, [kind(shaper) for shaper in shapers]):
        tree["shapers"] = [*shapers, {"kind": "information_gain"}]
    return checked(CreditConfig, {**tree, "estimator": name}, "credit")
