"""Values of a configuration that change from step to step of RL.

``schedules=[{"key": "sampling.temperature", "from": 1.0, "to": 0.7, "steps": 40}]`` moves the temperature from 1.0 at
the first step to 0.7 at the 41st, and leaves it there. A value is a function of the step, so a resumed run has those of
the first one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_type_hints

from agentgym.errors import ConfigError, unknown_name
from agentgym.plugins import kind

if TYPE_CHECKING:
    from agentgym.trainers.config.train import TrainConfig

C = TypeVar("C", bound="TrainConfig")
Form = Literal["linear", "cosine", "step"]
KEYS = ("key", "from", "to", "steps", "form")

SINGLE = (
    "sampling.temperature", "sampling.max_new_tokens", "sampling.max_thinking_tokens", "group.group_size",
    "optimizer.max_grad_norm",
)  # fmt: skip
BELOW = ("loss", "credit", "strategy")
"""Parts whose numbers are all read at every step, except for :data:`AT_START`."""
AT_START = ("loss.tokens_per_microbatch", "strategy.probe")
COUNTED = ("loss.num_updates", "loss.num_epochs", "loss.rows_per_update")
"""Numbers of optimizer steps, by which ``sft.mix`` finds its batches."""
INSTEAD = {
    "optimizer.lr": "; optimizer.schedule changes the learning rate",
    "sft.mix.weight": "; sft.mix.schedule changes it",
    "env.kwargs.max_turns": "; strategy.horizon changes the limit of turns",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A number that moves from one value to another, and stays there.

    Example:
        >>> schedule = Schedule(key="sampling.temperature", start=1.0, end=0.5, steps=4)
        >>> [schedule.at(step) for step in (0, 1, 4, 9)]
        [1.0, 0.875, 0.5, 0.5]
    """

    key: str
    start: float
    """Value of the first step."""
    end: float
    """Value of all steps from number ``steps`` on, counted from 0."""
    steps: int
    form: Form = "linear"
    """``cosine`` is slow at both ends; ``step`` keeps ``start`` until it changes to ``end`` at once."""

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Schedule:
        """Return the schedule of settings with the keys ``key``, ``from``, ``to``, ``steps`` and ``form``.

        Raises:
            ConfigError: a key is missing or unknown, or a value cannot be.
        """
        if unknown := sorted(set(settings) - set(KEYS)):
            raise unknown_name("key", f"schedules.{unknown[0]}", [f"schedules.{name}" for name in KEYS])
        if missing := [name for name in KEYS[:-1] if name not in settings]:
            raise ConfigError(
                f"schedules: {dict(settings)} has no {missing[0]!r}; expected "
                '{"key": "sampling.temperature", "from": 1.0, "to": 0.7, "steps": 40}'
            )
        key, form, steps = settings["key"], settings.get("form", "linear"), settings["steps"]
        if not isinstance(key, str):
            raise ConfigError(f"schedules.key must be the path of a value, got {key!r}")
        if form not in get_args(Form):
            raise ConfigError(f"schedules: form of {key} must be one of {', '.join(get_args(Form))}, got {form!r}")
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise ConfigError(f"schedules: steps of {key} must be a whole number of at least 1, got {steps!r}")
        start, end = (_finite(key, name, settings[name]) for name in ("from", "to"))
        if start == end:
            raise ConfigError(f"schedules: {key} goes from {start:g} to {end:g}, so nothing changes: set {key} instead")
        return cls(key=key, start=start, end=end, steps=steps, form=form)

    def at(self, step: int) -> float:
        """Return the value of a step, counted from 0."""
        done = min(step / self.steps, 1.0)
        if self.form == "step":
            done = math.floor(done)
        elif self.form == "cosine":
            done = 0.5 * (1 - math.cos(math.pi * done))
        return self.end if done >= 1 else self.start + (self.end - self.start) * done


def scheduled(config: C, step: int) -> C:
    """Return the configuration as it holds at a step of RL, counted from 0; itself if nothing is scheduled."""
    for schedule in map(Schedule.read, config.schedules):
        config = _with_value(config, schedule.key, schedule.at(step))
    return config


def schedule_metrics(config: TrainConfig, step: int) -> dict[str, float]:
    """Return the scheduled values of a step by the names of their metrics, ``schedule/KEY``."""
    now, keys = scheduled(config, step), [str(settings["key"]) for settings in config.schedules]
    return {f"schedule/{key}": float(_nodes(now, key)[-1]) for key in keys}


def check_schedules(config: TrainConfig) -> None:
    """Refuse schedules of values that are read once, and values that the configuration could not have.

    Raises:
        ConfigError: a schedule is invalid; the message names it and the keys that can be scheduled.
    """
    schedules = [Schedule.read(settings) for settings in config.schedules]
    names = [schedule.key for schedule in schedules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"schedules: {', '.join(twice)} is scheduled twice")
    for schedule in schedules:
        _check_key(config, schedule.key)
    plain: TrainConfig = _replaced(config, ["schedules"], (), is_checked=False)
    for step in sorted({0, *(schedule.steps for schedule in schedules)}):
        changed = plain
        for schedule in schedules:
            value = schedule.at(step)
            if value or not _is_off_at_0(config, schedule.key):  # 0 is idle where it lasts for the whole run
                changed = _with_value(changed, schedule.key, value)
        for schedule in schedules:
            _check_value(changed, schedule, step)


def _check_key(config: TrainConfig, key: str) -> None:
    is_read = key in SINGLE or (key.partition(".")[0] in BELOW and key not in AT_START)
    if not is_read:
        raise ConfigError(
            f"schedules: {key} is not read at every step{INSTEAD.get(key, '')}. Schedules change {', '.join(SINGLE)}, "
            f"and numbers below {', '.join(BELOW)}, as in loss.regularisers.kl.coef"
        )
    if _type_of(config, key) is None:
        raise ConfigError(f"schedules: {key} is no number")
    if key in COUNTED and config.sft.mix.weight:
        raise ConfigError(f"schedules: sft.mix counts on the same number of updates in each step; leave {key} as it is")
    if key.endswith("gamma") and "q_value" in config.credit.columns():
        raise ConfigError(f"schedules: the critic of {config.credit.estimator} reads {key} once, when it is made")
    is_mixed = config.pipeline.mode == "async" and config.loss.mode == "decoupled" and not config.loss.corrections
    if key == "sampling.temperature" and is_mixed:
        raise ConfigError(
            "schedules: in async mode episodes of several temperatures are trained together: name one of "
            "loss.corrections, or set loss.mode=bypass"
        )


def _check_value(config: TrainConfig, schedule: Schedule, step: int) -> None:
    """Let every part of the configuration check itself that a scheduled value is below."""
    path = schedule.key.split(".")
    try:
        _replaced(config, path, _nodes(config, schedule.key)[-1], is_checked=True)
    except ConfigError as error:
        raise ConfigError(f"schedules: {schedule.key}={schedule.at(step):g} at step {step + 1}: {error}") from error


# ---------------------------------- values by their paths: keys of dataclasses, and of components in a list their kinds


def _nodes(config: object, key: str) -> list[Any]:
    """Return the objects on the path to a value, from the configuration to the value.

    Raises:
        ConfigError: there is no such value.
    """
    names = key.split(".")
    nodes: list[Any] = [config]
    for depth, name in enumerate(names):
        found = dict(_children(nodes[-1]))
        above = "".join(f"{one}." for one in names[:depth])
        if not found:
            raise ConfigError(f"schedules: {key}: there is nothing below {above[:-1]}; name a component there first")
        if name not in found:
            raise unknown_name("scheduled key", key, [f"{above}{child}" for child in found])
        nodes.append(found[name])
    return nodes


def _children(node: object) -> Iterator[tuple[str, Any]]:
    if is_dataclass(node):
        yield from ((field.name, getattr(node, field.name)) for field in fields(node))
    elif isinstance(node, tuple):
        yield from ((str(kind(part)).rpartition(":")[2], part) for part in node)


def _type_of(config: object, key: str) -> type[int] | type[float] | None:
    """Return the type of a number's field, None if the field holds no number."""
    parent, value = _nodes(config, key)[-2:]
    try:
        hint = get_type_hints(type(parent)).get(key.rpartition(".")[2])
    except NameError:  # names that are imported for type checkers alone
        hint = type(value)
    allowed = {hint, *get_args(hint)}
    return float if float in allowed else int if int in allowed else None


def _is_off_at_0(config: object, key: str) -> bool:
    return getattr(_nodes(config, key)[-2], "off_at_0", "") == key.rpartition(".")[2]


def _with_value(config: C, key: str, value: float) -> C:
    """Return a copy of the configuration with a number replaced, without its checks: they know no step."""
    number = round(value) if _type_of(config, key) is int else float(value)
    made: C = _replaced(config, key.split("."), number, is_checked=False)
    return made


def _replaced(node: Any, path: Sequence[str], value: object, *, is_checked: bool) -> Any:
    if not path:
        return value
    name, *rest = path
    if isinstance(node, tuple):
        at = [child for child, _ in _children(node)].index(name)
        return (*node[:at], _replaced(node[at], rest, value, is_checked=is_checked), *node[at + 1 :])
    inside = _replaced(getattr(node, name), rest, value, is_checked=is_checked)
    if is_checked:
        return replace(node, **{name: inside})
    made = copy.copy(node)
    object.__setattr__(made, name, inside)
    return made


def _finite(key: str, name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"schedules: {name!r} of {key} must be a number, got {value!r}")
    return value
