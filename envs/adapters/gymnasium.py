"""``agentgym/Gymnasium-v0``: any environment of Gymnasium with discrete or text actions.

Source: Gymnasium (Farama Foundation, MIT licence). The installed package is the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, Text

from agentgym.canonical import canonical, digest
from agentgym.envs.adapters.gymnasium_texts import GAME_TEXTS, Describe, GameText, describe_drawing, describe_value
from agentgym.envs.adapters.line_env import LineEnv
from agentgym.envs.interfaces import Interface
from agentgym.errors import ResetNeededError, ToolError, UsageError, require_known, unknown_name
from agentgym.types import Message, Task

_DISCOUNT = 0.99
_NUM_SWEEPS = 1000
_TOLERANCE = 1e-9
_LONGEST_KEY = 200

Transitions = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""The model of a toy-text game: state, action -> (probability, next state, reward, is terminal)."""


class GymnasiumEnv(LineEnv):
    """An environment of Gymnasium with discrete or text actions, described in words.

    Rewards and ends of an episode are the wrapped environment's, which is reset with the episode's seed. Its time limit
    is the turn limit, with one action per turn. Toy-text games and CartPole have texts. For others, the text shows
    observations and numbered actions, unless the arguments give more. A deterministic game with a known model (``P``,
    as in toy-text) has an oracle.

    Args:
        env: id of the environment in Gymnasium's registry, or ``module:Id`` to import a module first.
        env_kwargs: arguments of the environment.
        action_names: names of discrete actions, in the order of their numbers.
        rules: text at the start of an episode.
        describe: text form of an observation: ``value`` for its numbers, ``drawing`` for the output of ``render`` in
            ``ansi`` mode, or a function of the observation and the unwrapped environment.
        success_return: smallest return of a success; by default the value in the game's text, else Gymnasium's
            ``reward_threshold``, else a last reward above 0.
        max_turns: turns after which an episode is truncated; by default the wrapped environment's limit.
        interface: ``tools`` for the tool ``act``, ``text`` for an action on the last line.

    Raises:
        UsageError: there is no such environment, or its actions are neither discrete nor text.

    Example:
        >>> env = GymnasiumEnv(env="CliffWalking-v1", interface="text")
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step("up")
        >>> print(observation[0].text.splitlines()[0], reward)
        You are at row 2, column 0. -1.0
    """

    def __init__(  # noqa: PLR0913  (the names at the call are the documentation)
        self,
        *,
        env: str = "Taxi-v4",
        env_kwargs: Mapping[str, Any] | None = None,
        action_names: Sequence[str] | None = None,
        rules: str | None = None,
        describe: str | Describe | None = None,
        success_return: float | None = None,
        max_turns: int | None = None,
        interface: Interface = "tools",
        render_mode: str | None = None,
    ) -> None:
        self._text = GAME_TEXTS.get(env.rpartition(":")[2], _UNKNOWN)
        self._wrapped = _make(env, dict(env_kwargs or {}))
        self._world: Any = self._wrapped.unwrapped
        self._names = _names(self._wrapped, action_names, self._text)
        self._rules = self._text.rules if rules is None else rules
        self._describe = _describer(self._text.describe if describe is None else describe)
        self._success_return = success_return
        self._observation: Any = None
        self._return, self._last_reward, self._has_ended = 0.0, 0.0, False
        spec = self._wrapped.spec
        limit = None if spec is None else gymnasium.spec(spec.id).max_episode_steps
        super().__init__(
            interface=interface, max_turns=max_turns or limit or self._text.max_turns, render_mode=render_mode
        )

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        self._observation, _ = self._wrapped.reset(seed=self.np_random_seed)
        self._return, self._last_reward, self._has_ended = 0.0, 0.0, False
        told = self._describe(self._observation, self._world)
        choice = f"Actions: {', '.join(self._names)}." if self._names else ""
        return "\n\n".join(part for part in (self._rules, choice, told) if part)

    def do(self, line: str) -> str:
        self._observation, reward, terminated, truncated, _ = self._wrapped.step(self._action_of(line))
        self._last_reward, self._has_ended = float(reward), terminated
        self._return += float(reward)
        self.award(float(reward), "reward")
        if terminated:
            self.finish()
        elif truncated:
            self.truncate()
        return self._describe(self._observation, self._world)

    def is_success(self) -> bool:
        least = self._success_return
        if least is None and self._text.goal_reward is not None:
            return self._has_ended and self._last_reward >= self._text.goal_reward
        if least is None and self._wrapped.spec is not None:
            least = self._wrapped.spec.reward_threshold
        if least is None:
            return self._has_ended and self._last_reward > 0
        return self._return >= least - _TOLERANCE

    def stop(self) -> None:
        self._wrapped.close()

    def _action_of(self, line: str) -> Any:
        space = self._wrapped.action_space
        if isinstance(space, Text):
            if not space.contains(line):
                raise ToolError(
                    f"{line!r} is no action: {space.min_length} to {space.max_length} of the characters "
                    f"{''.join(sorted(space.character_set))!r}",
                    "invalid_arguments",
                )
            return line
        assert isinstance(space, Discrete)
        wanted = line.strip().casefold()
        for number, name in enumerate(self._names):
            if wanted == name.casefold():
                return int(space.start) + number
        raise ToolError(f"no action {line!r}; there are: {', '.join(self._names)}", "unknown_action")

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def wrapped(self) -> gymnasium.Env[Any, Any]:
        """The wrapped environment."""
        return self._wrapped

    def action_names(self) -> Sequence[str]:
        return self._names

    def admissible_actions(self) -> tuple[str, ...]:
        return tuple(self._names)

    def state_key(self) -> str:
        """Return a key of the last observation (a digest if it is long), the hidden state, and whether the episode
        ended.
        """
        if self._observation is None:
            raise ResetNeededError(f"{self.env_id}: no state before reset()")
        return f"{_short(self._observation)} {canonical(self._text.hidden(self._world))} {self._has_ended}"

    def oracle(self) -> Message:
        """Return the best action under the game's own model, with a discount of 0.99.

        Raises:
            UsageError: there is no model, or the game is random.
        """
        if self._plan is None:
            return super().oracle()
        return self.message_of(self._names[self._plan[int(self._world.s)]])

    @cached_property
    def _plan(self) -> Sequence[int] | None:
        """Return the best action of each state, or None without a deterministic model."""
        model: Transitions | None = getattr(self._world, "P", None)
        if model is None or not hasattr(self._world, "s"):
            return None
        if any(len(moves) > 1 for actions in model.values() for moves in actions.values()):
            return None
        return _best_actions(model)


def _best_actions(model: Transitions) -> list[int]:
    """Run value iteration ("Dynamic Programming", Bellman 1957) on a deterministic model."""
    states, actions = range(len(model)), range(len(model[0]))
    moves = [[model[state][action][0] for action in actions] for state in states]
    following = np.array([[move[1] for move in row] for row in moves])
    reward = np.array([[move[2] for move in row] for row in moves])
    goes_on = np.array([[not move[3] for move in row] for row in moves])
    value = np.zeros(len(model))
    quality = reward
    for _ in range(_NUM_SWEEPS):
        quality = reward + _DISCOUNT * goes_on * value[following]
        improved = quality.max(axis=1)
        if np.abs(improved - value).max() < _TOLERANCE:
            break
        value = improved
    return [int(best) for best in quality.argmax(axis=1)]


_UNKNOWN = GameText(actions=(), rules="", describe=describe_value)


def _make(id: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make the environment without its time limit, which becomes the turn limit, and with text rendering if any."""
    fixed: dict[str, Any] = {"max_episode_steps": -1, "disable_env_checker": True}
    try:
        made = gymnasium.make(id, **kwargs, **fixed)
        if "render_mode" in kwargs or "ansi" not in made.metadata.get("render_modes", ()):
            return made
        made.close()
        return gymnasium.make(id, **kwargs, **fixed, render_mode="ansi")
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(f"{id} lacks a package: {error}") from error
    except (gymnasium.error.NameNotFound, gymnasium.error.VersionNotFound, gymnasium.error.NamespaceNotFound) as error:
        raise unknown_name("environment of Gymnasium", id, gymnasium.registry) from error
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
        raise UsageError(f"{id}: {error}") from error


def _names(env: gymnasium.Env[Any, Any], given: Sequence[str] | None, text: GameText) -> tuple[str, ...]:
    space = env.action_space
    if isinstance(space, Text) and not given:
        return ()
    if not isinstance(space, Discrete):
        raise UsageError(f"actions must be discrete{' to have names' if given else ' or text'}, here they are {space}")
    names = tuple(given or text.actions or (str(int(space.start) + number) for number in range(int(space.n))))
    if len(names) != space.n or len({name.casefold().strip() for name in names}) < len(names):
        raise UsageError(f"{space.n} different action_names are needed, got {', '.join(names)}")
    return names


def _describer(wanted: str | Describe) -> Describe:
    if not isinstance(wanted, str):
        return wanted
    require_known("describer", wanted, _DESCRIBERS)
    return _DESCRIBERS[wanted]


_DESCRIBERS: Mapping[str, Describe] = {"value": describe_value, "drawing": describe_drawing}


def _short(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= _LONGEST_KEY else digest(value)
