"""Texts for environments of Gymnasium: names of actions, rules, and descriptions of observations.

Source of the facts: the docstrings of ``gymnasium.envs.toy_text`` and ``classic_control``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentgym.canonical import packaged

_HIGHLIGHTED = re.compile(r"\x1b\[[\d;]*m(.)\x1b\[0m")  # toy-text marks the agent's position by colour
_LAST_ACTION = re.compile(r"^  \(\w+\)\n", re.MULTILINE)

Describe = Callable[[Any, Any], str]
"""A function from the observation and the unwrapped environment to a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameText:
    """Texts for one environment of Gymnasium.

    Example:
        >>> GAME_TEXTS["Blackjack-v1"].actions
        ('stick', 'hit')
    """

    actions: Sequence[str]
    """Names of actions in the order of their numbers."""
    rules: str
    describe: Describe
    goal_reward: float | None = None
    """Smallest reward in the last step that makes an episode a success; None for the return threshold in Gymnasium's
    registry."""
    hidden: Callable[[Any], Any] = lambda world: None
    """Function that returns the hidden part of the unwrapped environment's state."""
    max_turns: int | None = None
    """Turn limit if Gymnasium has none."""


def describe_value(observation: Any, world: Any) -> str:
    """Format any observation: numbers with four digits, arrays and tuples as lists.

    Example:
        >>> describe_value((np.float32(0.5), np.int64(3)), None)
        '[0.5, 3]'
    """
    return str(_plain(observation))


def describe_drawing(observation: Any, world: Any) -> str:
    """Return the drawing of ``ansi`` mode, with the coloured character in brackets and without the last action."""
    drawn = _LAST_ACTION.sub("", str(world.render()))
    return _HIGHLIGHTED.sub(r"[\1]", drawn).strip("\n")


def _describe_taxi(observation: Any, world: Any) -> str:
    row, column, passenger, destination = world.decode(int(observation))
    places = ("R (row 0, column 0)", "G (row 0, column 4)", "Y (row 4, column 0)", "B (row 4, column 3)", "the taxi")
    streets = "\n".join(b"".join(line).decode() for line in world.desc)
    return (
        f"The taxi is at row {row}, column {column}. The passenger is {'in' if passenger == 4 else 'at'} "
        f"{places[passenger]}. The destination is {places[destination]}.\n{streets}"
    )


def _describe_cliff(observation: Any, world: Any) -> str:
    row, column = divmod(int(observation), 12)
    return f"You are at row {row}, column {column}.\n{describe_drawing(observation, world)}"


def _describe_blackjack(observation: Any, world: Any) -> str:
    total, dealer, ace = (int(value) for value in observation)
    return f"Your sum is {total}{', with a usable ace' if ace else ''}. The dealer shows {dealer}."


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return float(f"{value:.4g}") if isinstance(value, float) else value


_DESCRIBE: Mapping[str, Describe] = {
    "value": describe_value,
    "drawing": describe_drawing,
    "taxi": _describe_taxi,
    "cliff": _describe_cliff,
    "blackjack": _describe_blackjack,
}
_HIDDEN: Mapping[str, Callable[[Any], Any]] = {"dealer": lambda world: sorted(world.dealer), "nothing": lambda _: None}


def _text(*, actions: Sequence[str], describe: str, hidden: str = "nothing", **others: Any) -> GameText:
    return GameText(actions=tuple(actions), describe=_DESCRIBE[describe], hidden=_HIDDEN[hidden], **others)


GAME_TEXTS: Mapping[str, GameText] = {
    name: _text(**given)
    for names, given in packaged(__package__, "gymnasium_texts.toml").items()
    for name in names.split()
}
"""Texts by environment id. Other environments show observations and numbered actions."""
