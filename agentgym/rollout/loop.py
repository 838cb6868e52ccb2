"""One episode, from reset to its last turn.

Whatever the infrastructure does wrong ends the episode with a status that carries no reward; whatever the policy does
wrong is data.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from agentgym.env import Env
from agentgym.errors import (
    ConfigError,
    EngineError,
    EnvError,
    EnvTimeoutError,
    InfrastructureError,
    ToolError,
    boundary,
)
from agentgym.rollout.actor import Actor, Decision, MakeActor
from agentgym.rollout.delegation import Delegation
from agentgym.sub_agents import AsksAgents
from agentgym.types import Latency, Message, Observation, Segment, Status, Task, Trajectory, Turn

_REFUSED: Mapping[str, Any] = {"reward_parts": (), "is_valid": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """How long an environment may take before it counts as hung."""

    reset_timeout_s: float = 120.0
    step_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.reset_timeout_s <= 0 or self.step_timeout_s <= 0:
            raise ConfigError("reset_timeout_s and step_timeout_s must be above 0")


async def run_episode(
    env: Env,
    task: Task,
    actor: Actor,
    limits: EpisodeLimits,
    *,
    seed: int = 0,
    num_retries: int = 0,
    make_actor: MakeActor | None = None,
    on_turn: Callable[[Turn], None] = lambda turn: None,
) -> Trajectory:
    """Play one task. Never raises for what the environment, a tool or the engine did wrong: see ``status``.

    Args:
        make_actor: makes the actors of sub-agents, where the environment asks some.
        on_turn: called after each turn, for who must know about an episode before it ends.
    """
    turns: list[tuple[Turn, bool]] = []
    observation: Observation = ()
    status: Status = Status.ABORTED
    error: str | None = None
    success: bool | None = None
    delegation = _delegation(env, make_actor, limits, seed)
    try:
        observation = await _reset(env, task, limits)
        actor.begin(observation, env.tools)
        while True:
            state_key = _state_key(env)
            decision = await actor.decide()
            if decision is None:
                status, success = Status.TRUNCATED_TOKENS, False
                break
            if decision.is_summary:
                outcome = _Outcome(turn=_summary_turn(decision, len(turns), state_key))
            else:
                outcome = await _step(env, decision, len(turns), state_key, limits, delegation)
            turns.append((outcome.turn, decision.begins_segment))
            on_turn(outcome.turn)
            if outcome.ended is not None:
                status, success, error = outcome.ended, outcome.success, outcome.error
                break
            if not decision.is_summary:
                actor.observe(outcome.turn.replies, outcome.turn.played)
    except InfrastructureError as raised:
        status, error = _status_of(raised), str(raised)
    finally:
        await actor.end()
    return Trajectory(
        task=task,
        env_id=env.env_id,
        status=status,
        segments=(*_segments(turns), *(delegation.segments if delegation else ())),
        seed=seed,
        observation=observation,
        success=success,
        error=error,
        num_retries=num_retries,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    turn: Turn
    ended: Status | None = None
    success: bool | None = None
    error: str | None = None


async def _reset(env: Env, task: Task, limits: EpisodeLimits) -> Observation:
    with boundary(EnvError, f"{env.env_id} reset"):
        async with asyncio.timeout(limits.reset_timeout_s):
            observation, _ = await env.areset(seed=task.seed, options={"task": task})
    return observation


def _delegation(env: Env, make_actor: MakeActor | None, limits: EpisodeLimits, seed: int) -> Delegation | None:
    """Who plays the sub-agents that the environment asks, if it does."""
    if not isinstance(env, AsksAgents):
        return None
    if make_actor is None:
        env.hand_delegate(None)
        return None

    def play(sub_env: Env, task: Task, sub_seed: int) -> Coroutine[Any, Any, Trajectory]:
        return run_episode(sub_env, task, make_actor(sub_env, sub_seed), limits, seed=sub_seed)

    delegation = Delegation(play, seed, limits.step_timeout_s)
    env.hand_delegate(delegation)
    return delegation


async def _step(
    env: Env, decision: Decision, index: int, state_key: str, limits: EpisodeLimits, delegation: Delegation | None
) -> _Outcome:
    started = time.perf_counter()
    replies: Observation = ()
    info: Mapping[str, Any] = _REFUSED
    ended: Status | None = None
    refusal: str | None = None
    try:
        with boundary(EnvError, f"{env.env_id} step {index}"):
            async with asyncio.timeout(limits.step_timeout_s) as clock:
                if delegation is not None:
                    delegation.clock = clock
                replies, _, terminated, truncated, info = await env.astep(decision.action)
        ended = Status.COMPLETED if terminated else Status.TRUNCATED_TURNS if truncated else None
    except ToolError as error:  # an environment's last word on what the policy did
        refusal, ended = str(error), Status.POLICY_ERROR
    turn = Turn(
        index=index,
        prompt_ids=decision.prompt_ids,
        completion=decision.completion,
        usage=decision.usage,
        action=decision.action,
        played=info.get("played"),
        replies=replies,
        reward_parts=info["reward_parts"],
        state_key=state_key,
        is_valid=info["is_valid"],
        is_void=_is_void(decision.action, env),
        latency=Latency(decision.render_s, decision.generate_s, time.perf_counter() - started),
    )
    return _Outcome(turn=turn, ended=ended, success=info.get("success", False) if ended else None, error=refusal)


def _is_void(action: Message, env: Env) -> bool:
    """True if a turn neither calls a tool nor says anything that counts."""
    if action.calls:
        return False
    return not action.text.strip() or (bool(env.tools) and not env.takes_words)


def _summary_turn(decision: Decision, index: int, state_key: str) -> Turn:
    """A summary is compared with summaries written in the same state, never with the actions taken there."""
    return Turn(
        index=index,
        kind="summary",
        prompt_ids=decision.prompt_ids,
        completion=decision.completion,
        action=decision.action,
        state_key=f"summary in {state_key}",
        is_void=not decision.action.text.strip(),
        latency=Latency(decision.render_s, decision.generate_s),
    )


def _state_key(env: Env) -> str:
    with boundary(EnvError, f"{env.env_id} state_key"):
        return env.state_key()


def _status_of(error: InfrastructureError) -> Status:
    if isinstance(error, EnvTimeoutError):
        return Status.TIMEOUT
    return Status.ABORTED if isinstance(error, EngineError) else Status.ENV_ERROR


def _segments(turns: list[tuple[Turn, bool]]) -> tuple[Segment, ...]:
    segments: list[list[Turn]] = []
    for turn, begins_segment in turns:
        if begins_segment or not segments:
            segments.append([])
        segments[-1].append(turn)
    return tuple(Segment(tuple(segment)) for segment in segments)
