"""One episode, from reset to its last turn.

An infrastructure failure ends the episode with a status without a reward. A mistake of the policy is data.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentgym.env.actions import gold_action
from agentgym.env.env import Env
from agentgym.env.observations import as_observation
from agentgym.env.sub_agents import AsksAgents
from agentgym.error_places import place_of
from agentgym.errors import (
    EngineError,
    EnvError,
    EnvTimeoutError,
    InfrastructureError,
    PolicyFaultError,
    PromptTooLongError,
    ReplayMismatchError,
    UsageError,
    boundary,
    failed_part_of,
)
from agentgym.rollout.agent import Agent, GuidedAgent
from agentgym.rollout.branch import Branch
from agentgym.rollout.delegation import Delegation
from agentgym.rollout.env_steps import PASSING, Outcome, final_state_key, limited, reset_env, state_key_of, step_env
from agentgym.rollout.memory import FEEDBACK
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.voids import kind_of_action
from agentgym.tool import cut_output
from agentgym.types import Message, Observation, Segment, Status, Trajectory, Turn


async def run_episode(env: Env, request: RolloutRequest) -> Trajectory:
    """Run one episode.

    Failures of the environment, a tool or the engine do not raise: they set the trajectory's ``status``.
    """
    request = replace(request, limits=request.limits.of(env))
    agent = request.make_agent(env, request.seed)
    delegation = _delegation(env, request)
    so_far = _SoFar()
    try:
        await _play(env, request, agent, delegation, so_far)
    except PromptTooLongError as raised:
        so_far.end(Status.TRUNCATED_TOKENS, False, str(raised))
    except PolicyFaultError as raised:
        so_far.end(Status.POLICY_ERROR, False, str(raised))
    except InfrastructureError as raised:
        so_far.end(status_of(raised), None, f"{raised}{place_of(raised.__cause__, or_ours=False)}")
        so_far.failed_part = failed_part_of(raised)
        so_far.voids = (so_far.doing,)
    finally:
        await _end(agent)
    return Trajectory(
        task=request.task,
        env_id=env.env_id,
        status=so_far.status,
        segments=(*as_segments(so_far.turns), *(delegation.segments if delegation else ())),
        frozen_segments=tuple(delegation.frozen_segments) if delegation else (),
        seed=request.seed,
        task_type=so_far.task_type,
        observation=so_far.observation,
        success=so_far.success,
        error=None if so_far.error is None else cut_output(so_far.error),
        failed_part=so_far.failed_part,
        num_retries=request.num_retries,
        voids=so_far.voids,
        parent=-1 if request.branch is None else request.branch.parent,
        branch_turn=min(len(so_far.turns), request.num_copied),
        is_stopped=so_far.is_stopped,
        final_state_key=final_state_key(env, so_far.status),
    )


@dataclass(slots=True)
class _SoFar:
    """An episode while it is played."""

    doing: str = "reset"
    """Operation in progress, which an error is attributed to."""
    observation: Observation = ()
    task_type: str = ""
    turns: list[tuple[Turn, bool]] = field(default_factory=list)
    """Turns so far, each with True if it begins a segment."""
    status: Status = Status.ABORTED
    success: bool | None = None
    error: str | None = None
    failed_part: str = ""
    voids: tuple[str, ...] = ()
    is_stopped: bool = False

    def end(self, status: Status, success: bool | None, error: str | None) -> None:
        self.status, self.success, self.error = status, success, error


async def _play(env: Env, request: RolloutRequest, agent: Agent, delegation: Delegation | None, so_far: _SoFar) -> None:
    """Run the episode to its end and record it in ``so_far``; failures raise errors."""
    branch = request.branch
    so_far.observation = await (
        reset_env(env, request.task, request.limits) if branch is None else _return(env, request, branch)
    )
    with boundary(EnvError, f"{env.env_id}: its first prompt", PASSING):
        agent.begin(so_far.observation, env.tools)
        so_far.task_type = str(env.task_type)
    if branch is not None:
        so_far.turns += _repeated(agent, branch)
    while True:
        state_key = state_key_of(env)
        if branch is not None and branch.stops(so_far.turns, state_key):
            so_far.is_stopped = True
            return
        await _look_ahead(env, request, agent, so_far)
        if len(so_far.turns) == request.pause_after:
            so_far.is_stopped = True
            return
        so_far.doing = "sampling"
        with boundary(EngineError, "sampling"):
            decision = await agent.decide()
        if decision is None:
            so_far.end(Status.TRUNCATED_TOKENS, False, None)
            return
        turn = decision.as_turn(len(so_far.turns), state_key)
        if decision.is_summary:
            outcome = Outcome(turn=turn)
        else:
            so_far.doing = kind_of_action(turn.action)
            outcome = await step_env(env, turn, request.limits, delegation)
            outcome = await _commented(env, request, outcome, so_far)
        so_far.turns.append((outcome.turn, decision.begins_segment))
        request.on_turn(outcome.turn)
        if outcome.ended is not None:
            so_far.end(outcome.ended, outcome.success, outcome.error)
            return
        if not decision.is_summary:
            with boundary(EnvError, f"{env.env_id}: what it answered in turn {outcome.turn.index}", PASSING):
                agent.observe(outcome.turn.replies, outcome.turn.played)


async def _return(env: Env, request: RolloutRequest, branch: Branch) -> Observation:
    """Bring the environment to the turn at which a branch begins, and return the episode's first observation.

    Raises:
        ReplayMismatchError: the reply to a replayed action differs from the recorded one.
    """
    if branch.snapshot is not None:
        with boundary(EnvError, f"{env.env_id} restore"):
            async with asyncio.timeout(request.limits.reset_timeout_s):
                restored = env.arestore(branch.snapshot)
                await limited(env, restored, request.limits.reset_timeout_s, "restore")
        return branch.observation
    is_same = await reset_env(env, request.task, request.limits) == branch.observation
    for turn, _ in branch.turns:
        if turn.kind != "summary" and is_same:
            outcome = await step_env(env, turn, request.limits, None)
            is_same = outcome.ended is None and replace(outcome.turn, latency=turn.latency) == _without_feedback(turn)
        if not is_same:
            raise ReplayMismatchError(
                f"{env.env_id}: a branch replayed turn {turn.index + 1}, and the environment's reply differs from "
                "the recorded one; is all randomness drawn from self.np_random?"
            )
    return branch.observation


def _without_feedback(turn: Turn) -> Turn:
    """Return a turn as the environment answered it; a comment that was added is the last of its replies."""
    return replace(turn, replies=turn.replies[:-1]) if turn.feedback else turn


def _repeated(agent: Agent, branch: Branch) -> list[tuple[Turn, bool]]:
    """Let the agent take the turns that a branch copies, and return them."""
    if not isinstance(agent, GuidedAgent):
        raise UsageError("branching needs a model's policy; this policy cannot continue another episode")
    for turn, _ in branch.turns:
        agent.repeat(turn)
        if turn.kind != "summary":
            agent.observe(turn.replies, turn.played)
    return list(branch.turns)


async def _look_ahead(env: Env, request: RolloutRequest, agent: Agent, so_far: _SoFar) -> None:
    """Take a snapshot and show a hint before a turn, if the request asks for them."""
    num_turns = len(so_far.turns)
    if request.on_snapshot is not None:
        with boundary(EnvError, f"{env.env_id} snapshot", PASSING):
            snapshot = await env.asnapshot()
        if snapshot.native is not None:
            request.on_snapshot(num_turns, snapshot)
    given = None if request.branch is None or num_turns != request.num_copied else request.branch.given
    is_asked = given is not None or bool(request.advice) or num_turns - request.num_copied < request.num_hints
    if not is_asked or not isinstance(agent, GuidedAgent):  # the check of a protocol costs as much as a small tool
        return
    if given is not None:
        agent.give(given)
    if request.advice and num_turns == request.num_copied:
        agent.show(Message("assistant", request.advice))
    elif num_turns - request.num_copied >= request.num_hints or request.write_feedback is not None:
        return
    elif request.hint:
        agent.show(Message("assistant", request.hint))
    elif request.write_hint is not None:
        if hint := await request.write_hint(env.tools, so_far.observation, [turn for turn, _ in so_far.turns]):
            agent.show(Message("assistant", hint))
    else:
        with boundary(EnvError, f"{env.env_id} oracle", PASSING):
            agent.show(gold_action(env))


async def _commented(env: Env, request: RolloutRequest, outcome: Outcome, so_far: _SoFar) -> Outcome:
    """Add a comment to the replies of a turn that earned nothing, if the request asks for one and one is written."""
    turn = outcome.turn
    if request.write_feedback is None or outcome.ended is not None or turn.reward > 0:
        return outcome
    before = [earlier for earlier, _ in so_far.turns]
    if sum(bool(earlier.feedback) for earlier in before) >= request.num_hints:
        return outcome
    said = await request.write_feedback(env.tools, so_far.observation, [*before, turn])
    if not said:
        return outcome
    (message,) = as_observation((Message("user", FEEDBACK.format(text=said)),))
    return replace(outcome, turn=replace(turn, replies=(*turn.replies, message), feedback=said))


async def _end(agent: Agent) -> None:
    """Free the agent's resources. If the engine fails to release its sessions, the episode stays valid."""
    with contextlib.suppress(Exception):
        await agent.end()


def _delegation(env: Env, request: RolloutRequest) -> Delegation | None:
    """Set up the sub-agents of an environment that calls some."""
    if not isinstance(env, AsksAgents):
        return None
    delegation = Delegation(run_episode, request)
    env.hand_delegate(delegation)
    return delegation


def status_of(error: InfrastructureError) -> Status:
    """Return the status of an episode that an infrastructure failure ended."""
    if isinstance(error, EnvTimeoutError):
        return Status.TIMEOUT
    return Status.ABORTED if isinstance(error, EngineError) else Status.ENV_ERROR


def as_segments(turns: Sequence[tuple[Turn, bool]]) -> tuple[Segment, ...]:
    """Group an episode's turns into segments; each turn comes with True if it begins one."""
    segments: list[list[Turn]] = []
    for turn, begins_segment in turns:
        if begins_segment or not segments:
            segments.append([])
        segments[-1].append(turn)
    return tuple(Segment(tuple(segment)) for segment in segments)
