"""``agentgym/MiniGrid-v0``: the grid worlds of MiniGrid and BabyAI, described in words.

Sources: "Minigrid & Miniworld: Modular & Customizable Reinforcement Learning Environments for Goal-Oriented Tasks" and
"BabyAI: A Platform to Study the Sample Efficiency of Grounded Language Learning"; the package is Farama's minigrid.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from agentgym.canonical import canonical, digest
from agentgym.envs.adapters.gymnasium import GymnasiumEnv
from agentgym.envs.interfaces import Interface
from agentgym.errors import ResetNeededError, UsageError, require_extra
from agentgym.types import Message, Task

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
"""Names of actions in the order of MiniGrid's numbers. ``toggle`` opens and closes the object in front."""

_RULES = "You move in a grid of rooms and see what is in front of you. toggle opens or closes what you face."
_DOOR_STATES = ("open", "closed", "locked")
_NOTHING = frozenset({"unseen", "empty", "floor", "wall"})


class MiniGridEnv(GymnasiumEnv):
    """A level of MiniGrid or BabyAI. The text lists the objects in the agent's view with their relative positions.

    Rewards, ends and step limit are the level's: reaching the goal pays ``1 - 0.9 * steps / limit``. BabyAI's bot is
    the oracle of its levels.

    Args:
        env: id of the level, such as ``BabyAI-GoToLocal-v0`` or ``MiniGrid-DoorKey-5x5-v0``.
        env_kwargs: arguments of the level.
        max_turns: turns after which an episode is truncated; by default the level's limit of steps.
        interface: ``tools`` for the tool ``act``, ``text`` for an action on the last line.

    Raises:
        MissingExtraError: minigrid is not installed.
        UsageError: there is no such level.
    """

    def __init__(
        self,
        *,
        env: str = "BabyAI-GoToLocal-v0",
        env_kwargs: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
        interface: Interface = "tools",
        render_mode: str | None = None,
    ) -> None:
        require_extra("agentgym/MiniGrid-v0", "minigrid", "minigrid")
        importlib.import_module("minigrid")  # the import registers the levels
        _check_level(env)
        level: Any = importlib.import_module("minigrid.envs.babyai.core.roomgrid_level")
        level.print = _say_nothing  # BabyAI prints every rejected sample to standard output
        self._has_own_limit = max_turns is not None
        self._bot: Any = None
        self._advice: int | None = None
        super().__init__(
            env=env,
            env_kwargs=env_kwargs,
            action_names=ACTIONS,
            rules=_RULES,
            describe=describe_view,
            max_turns=max_turns,
            interface=interface,
            render_mode=render_mode,
        )

    def start(self, task: Task) -> str:
        self._bot = self._advice = None
        said = super().start(task)
        if not self._has_own_limit:
            self.max_turns = int(self._world.max_steps)
        return f"Your mission: {self._world.mission}.\n\n{said}"

    def do(self, line: str) -> str:
        said = super().do(line)
        if self._bot is not None and not self.episode.is_over:
            self._advice = self._plan_after(self._action_of(line))
        return said

    def state_key(self) -> str:
        """Return a key of the mission and its progress, the agent, and the grid, without the number of steps."""
        if self._observation is None:
            raise ResetNeededError(f"{self.env_id}: no state before reset()")
        world = self._world
        agent = (*(int(at) for at in world.agent_pos), int(world.agent_dir), _code(world.carrying))
        done = list(_progress(getattr(world, "instrs", None)))
        cells = digest([_code(cell) for cell in world.grid.grid])
        return canonical([world.mission, done, agent, cells, self._has_ended])

    def oracle(self) -> Message:
        """Return the next action of BabyAI's bot.

        Raises:
            UsageError: the level is not BabyAI's, or the bot finds no way, as in a few levels.
        """
        if self._bot is None:
            if not hasattr(self._world, "instrs"):
                raise UsageError(f"{self.env_id}: only levels of BabyAI have an oracle; choose another policy")
            bots: Any = importlib.import_module("minigrid.utils.baby_ai_bot")
            self._bot = bots.BabyAIBot(self._world)
            self._advice = self._plan_after(None)
        if self._advice is None:
            raise UsageError(f"{self.env_id}: BabyAI's bot finds no way from here; choose another policy")
        return self.message_of(ACTIONS[self._advice])

    def _plan_after(self, action: int | None) -> int | None:
        try:
            return int(self._bot.replan(action))
        except Exception:  # the bot fails with a bare assertion if a level is not as it expects
            return None


def describe_view(observation: Any, world: Any) -> str:
    """Describe the agent's view: the free way ahead, each object with its position, and the carried object."""
    objects: Any = importlib.import_module("minigrid.core.constants")
    image = observation["image"]
    width, depth = image.shape[0], image.shape[1]
    seen = []
    for y in reversed(range(depth)):  # nearest objects first
        for x in range(width):
            kind, color, state = (int(value) for value in image[x, y])
            name = objects.IDX_TO_OBJECT[kind]
            place = _place(depth - 1 - y, x - width // 2)
            if name not in _NOTHING and place:
                how = f"{_DOOR_STATES[state]} " if name == "door" else ""
                seen.append(f"a {how}{objects.IDX_TO_COLOR[color]} {name} {place}")
    carried = world.carrying
    return (
        f"{_way_ahead(image, objects.IDX_TO_OBJECT)} You see {', '.join(seen) or 'nothing else'}. "
        f"You carry {f'a {carried.color} {carried.type}' if carried is not None else 'nothing'}."
    )


def _check_level(name: str) -> None:
    base: Any = importlib.import_module("minigrid.minigrid_env")
    point = gymnasium.registry[name].entry_point if name in gymnasium.registry else None
    made_by = load_env_creator(point) if isinstance(point, str) else point
    if made_by is not None and not (isinstance(made_by, type) and issubclass(made_by, base.MiniGridEnv)):
        raise UsageError(f"{name} is no level of MiniGrid; for other environments there is agentgym/Gymnasium-v0")


def _way_ahead(image: Any, names: Mapping[int, str]) -> str:
    depth = image.shape[1]
    for steps in range(1, depth):
        name = names[int(image[image.shape[0] // 2, depth - 1 - steps][0])]
        if name not in ("empty", "floor"):
            what = "something unseen" if name == "unseen" else f"a {name}"
            return f"Ahead of you is {what}, {steps} {'step' if steps == 1 else 'steps'} away."
    return "The way ahead of you is free."


def _place(forward: int, right: int) -> str:
    parts = [f"{forward} forward"] if forward else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " and ".join(parts)


def _code(thing: Any) -> list[Any] | None:
    return None if thing is None else [*(int(value) for value in thing.encode()), _code(thing.contains)]


def _progress(instruction: Any) -> Iterator[str]:
    """Yield the progress of the parts of a compound instruction."""
    for part in ("a", "b"):
        if hasattr(instruction, f"{part}_done"):
            yield str(getattr(instruction, f"{part}_done"))
        if hasattr(instruction, f"instr_{part}"):
            yield from _progress(getattr(instruction, f"instr_{part}"))


def _say_nothing(*words: object) -> None:
    """Replace ``print`` and print nothing."""
