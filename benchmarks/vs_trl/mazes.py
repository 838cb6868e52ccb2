"""The two tasks of the comparison: mazes walked a step at a time, and open ones whose whole path is one turn."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from transformers.utils import get_json_schema

from agentgym import register
from agentgym.call_syntax import format_call
from agentgym.envs.games.maze import MazeEnv, way
from agentgym.trainers.trl.environments import tool_method
from agentgym.types import Message, ToolCall, ToolSpec


class StepMaze(MazeEnv):
    """A maze walked a step at a time, with its tool declared exactly as TRL declares it.

    TRL builds a tool's schema from a method, with other keys in another order; copying it makes the prompts equal.
    Moves cost nothing. In a group without a success, costs divided by the group's deviation would teach the agent to do
    nothing.
    """

    def __init__(self, **knobs: Any) -> None:
        super().__init__(**{"shows_position": True, "step_cost": 0.0, **knobs})

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools as TRL shows them."""
        return tuple(_as_trl_reads(spec) for spec in super().tools)


class OneTurnMaze(StepMaze):
    """A maze whose way out is one turn of several calls, so that a trainer without turns can train on it."""

    def __init__(self, **knobs: Any) -> None:
        super().__init__(**{"loops": 1.0, "max_turns": 1, **knobs})

    def oracle(self) -> Message:
        """Return all steps of a shortest path."""
        steps = enumerate(way(self.plan, self._at))
        calls = tuple(ToolCall("move", {"direction": direction}, str(at)) for at, direction in steps)
        return Message("assistant", "\n".join(format_call(call, self.tools) for call in calls), calls)


@cache
def _parameters_of(name: str, description: str, parameters: str) -> dict[str, Any]:
    method = tool_method(ToolSpec(name, description, json.loads(parameters)), lambda *_: "")
    return get_json_schema(method)["function"]["parameters"]


def _as_trl_reads(spec: ToolSpec) -> ToolSpec:
    return replace(spec, parameters=_parameters_of(spec.name, spec.description, json.dumps(dict(spec.parameters))))


register("StepMaze-v0", StepMaze)
register("OneTurnMaze-v0", OneTurnMaze)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A task, and the settings that all arms share on it."""

    name: str
    env_id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    max_turns: int
    max_turn_tokens: int
    """Largest number of tokens of a turn, for trainers that limit turns."""
    max_episode_tokens: int
    """Largest number of tokens of an episode after its prompt, for trainers that limit episodes."""
    num_demos: int
    noise: float
    """Share of the demonstrations' actions that are random."""


MULTI = Setting(
    name="multi-turn",
    env_id="StepMaze-v0",
    kwargs={"size": 3, "loops": 0.3, "max_turns": 6},
    max_turns=6,
    max_turn_tokens=32,
    max_episode_tokens=480,
    num_demos=2500,
    noise=0.25,
)
ONE_TURN = Setting(
    name="one turn",
    env_id="OneTurnMaze-v0",
    kwargs={"size": 3},
    max_turns=1,
    max_turn_tokens=192,
    max_episode_tokens=192,
    num_demos=4000,
    noise=0.1,
)
REAL_MULTI = replace(
    MULTI,
    name="SmolLM2, multi-turn",
    kwargs={"size": 2, "max_turns": 4},
    max_turns=4,
    max_turn_tokens=48,
    max_episode_tokens=320,
    num_demos=48,
)
REAL_ONE_TURN = replace(
    ONE_TURN,
    name="SmolLM2, one turn",
    kwargs={"size": 2},
    max_turn_tokens=128,
    max_episode_tokens=128,
    num_demos=48,
    noise=0.25,
)
"""The same for a pretrained model of 135 M parameters, in mazes on which it trains in minutes."""
