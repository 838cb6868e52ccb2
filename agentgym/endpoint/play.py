"""Episodes that a harness runs against the endpoint, recorded as ordinary trajectories."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from agentgym.endpoint.gateway import KEY_PREFIX, MODEL, Gateway, new_session_id
from agentgym.endpoint.graph import Sampled
from agentgym.endpoint.harness import HarnessConfig, check_context
from agentgym.endpoint.session import EndpointPolicy, EpisodeSession
from agentgym.endpoint.wire.openai_chat import as_wire, read_said
from agentgym.engine import Engine, SamplingParams
from agentgym.env.env import Env
from agentgym.env.sub_agents import AsksAgents
from agentgym.errors import (
    EngineError,
    EnvError,
    EnvTimeoutError,
    InfrastructureError,
    PolicyFaultError,
    UsageError,
    boundary,
    failed_part_of,
)
from agentgym.json_schema.reading import required
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import Agent
from agentgym.rollout.context import FULL, ContextConfig
from agentgym.rollout.env_steps import Outcome, final_state_key, reset_env, state_key_of, step_env
from agentgym.rollout.loop import status_of
from agentgym.rollout.request import RolloutRequest
from agentgym.tool import cut_output
from agentgym.types import (
    JsonObject,
    Latency,
    Message,
    Observation,
    Segment,
    Status,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
)
from agentgym.visible_text import visible

_SUBMIT = "submit"
_OVER = "The episode has ended; this call was not run."


def note_on_stderr(text: str) -> None:
    """Print a remark on standard error, so that it does not mix with results."""
    print(visible(text), file=sys.stderr)


class HarnessAgents:
    """An :class:`~agentgym.rollout.agent.EpisodePlayer` that lets a harness run the episodes.

    Args:
        gateway: the endpoint; the first episode starts it, and :meth:`close` closes it.
        say: receives a remark about each request field that the run overrides, once per field.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: ChatRenderer,
        sampling: SamplingParams,
        config: HarnessConfig,
        context: ContextConfig = FULL,
        gateway: Gateway | None = None,
        say: Callable[[str], None] = note_on_stderr,
    ) -> None:
        check_context(context)
        config.check()
        window = context.window(engine.max_context_tokens)
        self._policy = EndpointPolicy(engine=engine, renderer=renderer, sampling=sampling, window_tokens=window)
        self._config = config
        self._gateway = gateway or Gateway(config.host, config.port)
        self._say = say

    def __call__(self, env: Env, seed: int) -> Agent:
        raise UsageError(f"{env.env_id}: a harness runs whole episodes; it cannot be an opponent or a sub-agent")

    async def play_episode(self, env: Env, request: RolloutRequest) -> Trajectory:
        """Run one episode. Failures of environment, engine or harness set its status."""
        if isinstance(env, AsksAgents):
            raise UsageError(f"{env.env_id} calls sub-agents, which a harness cannot run; leave harness.name empty")
        if request.branch is not None or request.num_hints or request.advice:
            raise UsageError("episodes of a harness neither branch nor take hints; remove the strategy settings")
        await self._gateway.start(has_socket=self._config.is_in_sandbox)
        self._config.prepare(env)
        request = replace(request, limits=request.limits.of(env))
        policy = replace(self._policy, renderer=self._policy.renderer.for_words(env.takes_words))
        session = EpisodeSession(
            new_session_id(), policy, request.seed, self._config.max_calls, lambda: state_key_of(env)
        )
        self._gateway.open(session)
        episode = LiveEpisode(env, request, session, self._gateway)
        # the agent occupies the sandbox, so a tool call from the agent would wait for ever
        if self._config.is_in_sandbox:
            session.is_state_hidden = True
        else:
            session.call_tool = episode.call_tool
        try:
            await episode.play(self._config)
        finally:
            self._gateway.forget(session)
            await session.close()
            self._note(session)
        return episode.trajectory()

    def _note(self, session: EpisodeSession) -> None:
        noted = self._gateway.noted
        if new := sorted(session.overridden - noted):
            self._say(f"note: the run decides {', '.join(new)}; what agents ask for there has no effect")
        if ignored := sorted(session.ignored - noted):
            self._say(f"note: the endpoint ignores {', '.join(ignored)}; the model's prompt has nothing of it")
        noted |= {*new, *ignored}

    async def close(self) -> None:
        """Close the endpoint."""
        await self._gateway.close()


@dataclass(slots=True)
class _Effect:
    """The environment steps that one completion caused."""

    outcomes: list[Outcome] = field(default_factory=list)
    acted: int = 0
    """Number of the completion's calls that have run."""


class LiveEpisode:
    """A running :class:`~agentgym.endpoint.harness.AgentEpisode`."""

    def __init__(self, env: Env, request: RolloutRequest, session: EpisodeSession, gateway: Gateway) -> None:
        self.env = env
        self._request, self._session, self._gateway = request, session, gateway
        self._effects: dict[int, _Effect] = {}
        self._stepping = asyncio.Lock()
        self.observation: Observation = ()
        self._task_type = ""
        self._status = Status.ABORTED
        self._success: bool | None = None
        self._error: str | None = None
        self._failed_part = ""
        self._doing = "reset"
        self.is_over = False

    # ------------------------------------------------------------------------------------- interface for harnesses

    @property
    def root_url(self) -> str:
        """Base URL of Anthropic clients, which has no ``/v1``."""
        return f"{self._gateway.url}/s/{self._session.id}"

    @property
    def base_url(self) -> str:
        """Base URL of OpenAI clients, ending in ``/v1``; it names the episode."""
        return f"{self.root_url}/v1"

    @property
    def api_key(self) -> str:
        """API key, which also names the episode."""
        return f"{KEY_PREFIX}{self._session.id}"

    @property
    def model(self) -> str:
        """Name of the model."""
        return MODEL

    @property
    def port(self) -> int:
        """Port of the endpoint."""
        return self._gateway.port

    @property
    def socket_path(self) -> str:
        """Path of the endpoint's Unix socket; empty if there is none."""
        return self._gateway.socket_path

    @property
    def sampling_s(self) -> float:
        """Seconds that the episode's completions have taken so far."""
        return self._session.sampling_s

    @property
    def is_cut(self) -> bool:
        """True if the token limit ended the last completion."""
        return self._session.is_cut

    @property
    def instruction(self) -> str:
        """Text of the environment's first messages."""
        return "\n\n".join(message.text for message in self.observation)

    @cached_property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools of the environment."""
        return tuple(self.env.tools)

    async def act(self, message: JsonObject) -> list[dict[str, Any]]:
        """Step the environment with an assistant message as the chat API returned it.

        Raises:
            UsageError: the endpoint has not returned this message.
        """
        said = read_said(message)
        found = self._session.graph.find(said)
        if found is None:
            raise UsageError("act() takes an assistant message as the endpoint returned it; this one was not returned")
        replies = await self._step(found, found.action, len(found.action.calls))
        return as_wire(_with_wire_ids(replies, found))

    async def call_tool(self, name: str, arguments: JsonObject) -> str:
        """Step the environment with one tool call and return the text of its reply.

        Raises:
            UsageError: there is no completion yet.
        """
        call = ToolCall(name, dict(arguments))
        found = self._asked_for(call)
        if found is None:
            found = self._session.graph.sampled[-1] if self._session.graph.sampled else None
        if found is None:
            raise UsageError(f"call_tool({name!r}) before the first completion; the policy has not asked for it")
        replies = await self._step(found, Message("assistant", calls=(call,)), 1)
        return "\n".join(reply.text for reply in replies)

    # ------------------------------------------------------------------------------------------------ the episode

    async def play(self, config: HarnessConfig) -> None:
        """Reset the environment, run the harness and end the episode."""
        try:
            self.observation = await reset_env(self.env, self._request.task, self._request.limits)
            with boundary(EnvError, f"{self.env.env_id}: its kind of task"):
                self._task_type = str(self.env.task_type)
            self._doing = "agent"
            await self._run(config)
            await self._finish()
        except PolicyFaultError as error:
            self._end(Status.POLICY_ERROR, False, str(error))
        except InfrastructureError as error:
            self._end(status_of(error), None, str(error))
            is_the_agents = self._doing == "agent" and not isinstance(error, EngineError)
            self._failed_part = failed_part_of(error) or ("agent" if is_the_agents else "")

    async def _run(self, config: HarnessConfig) -> None:
        """Run the harness. Raise its error unless the episode was already over or its last call was rejected."""
        try:
            with boundary(EnvError, f"harness {config.name}", (PolicyFaultError, InfrastructureError)):
                async with asyncio.timeout(config.timeout_s) as clock:
                    await config.run(self)
        except InfrastructureError as error:
            if self._session.failure is None and (self.is_over or self._session.refusal is not None):
                return
            if clock.expired():
                took = f"harness {config.name} took more than {config.timeout_s:g} s"
                raise EnvTimeoutError(f"{took}; set harness.timeout_s higher if that is too short") from error
            raise self._session.failure or error from error
        if self._session.failure is not None:
            raise self._session.failure

    async def _finish(self) -> None:
        """End an episode whose agent has stopped: with its limit's status, a last step, or the rewards so far."""
        if self.is_over:
            return
        if self._session.refusal is not None:
            status, reason = self._session.refusal
            self._end(status, False, reason)
            return
        if not self._session.graph.sampled:
            raise EnvError("the harness ended before it had a completion")
        last = self._session.graph.sampled[-1]
        if any(tool.name == _SUBMIT and not required(tool.parameters, tool.parameters) for tool in self.tools):
            await self._step(last, Message("assistant", calls=(ToolCall(_SUBMIT),)), 0)
        elif self.env.takes_words and last.ordinal not in self._effects:
            await self._step(last, last.action, 0)
        if not self.is_over:
            self._end(Status.COMPLETED, False, None)

    async def _step(self, asked: Sampled, action: Message, num_calls: int) -> Observation:
        """Step the environment for a completion; one step runs at a time."""
        async with self._stepping:
            if self.is_over:
                return tuple(Message("user", _OVER) for _ in action.calls[:1])
            effect = self._effects.setdefault(asked.ordinal, _Effect())
            turn = Turn(index=asked.ordinal, action=action)
            try:
                outcome = await step_env(self.env, turn, self._request.limits, None)
            except InfrastructureError as error:
                self._session.failure = self._session.failure or error
                self._doing = "step"
                raise
            effect.outcomes.append(outcome)
            effect.acted += num_calls
            if outcome.ended is not None:
                self._end(outcome.ended, outcome.success, outcome.error)
                self._session.is_open = False
            return outcome.turn.replies

    def _asked_for(self, call: ToolCall) -> Sampled | None:
        """Return the last completion that contains a call and has calls left to run."""
        for one in reversed(self._session.graph.sampled):
            done = self._effects.get(one.ordinal)
            same = sum(_is_same(asked, call) for asked in one.action.calls)
            if same and (done is None or done.acted < len(one.action.calls)):
                return one
        return None

    def _end(self, status: Status, success: bool | None, error: str | None) -> None:
        self._status, self._success, self._error = status, success, error
        self.is_over = True

    # ---------------------------------------------------------------------------------------------- the trajectory

    def trajectory(self) -> Trajectory:
        """Return the episode's trajectory. Turns are numbered in the order of the segments."""
        request = self._request
        segments: list[Segment] = []
        number = 0
        for row in self._session.graph.segments():
            turns = [self._turn(one, number + at) for at, one in enumerate(row)]
            number += len(turns)
            segments.append(Segment(tuple(turns)))
        return Trajectory(
            task=request.task,
            env_id=self.env.env_id,
            status=self._status,
            segments=tuple(segments),
            seed=request.seed,
            task_type=self._task_type,
            observation=self.observation,
            success=self._success,
            error=None if self._error is None else cut_output(self._error),
            failed_part=self._failed_part,
            num_retries=request.num_retries,
            voids=() if self._status.is_evidence else (self._doing,),
            final_state_key=None if self._session.is_state_hidden else final_state_key(self.env, self._status),
        )

    def _turn(self, one: Sampled, index: int) -> Turn:
        moment = self._session.moments[one.ordinal]
        effect = self._effects.get(one.ordinal)
        outcomes = effect.outcomes if effect is not None else []
        turns = [outcome.turn for outcome in outcomes]
        is_empty = not one.action.calls and not one.action.text.strip()
        return Turn(
            index=index,
            prompt_ids=one.added_ids,
            completion=one.completion,
            num_thinking_tokens=self._session.num_thinking_tokens(one),
            action=one.action,
            played=turns[0].played if len(turns) == 1 and turns[0].action is one.action else None,
            replies=tuple(reply for turn in turns for reply in turn.replies),
            reward_parts=tuple(part for turn in turns for part in turn.reward_parts),
            state_key=moment.state_key,
            is_valid=all(turn.is_valid for turn in turns),
            is_void=any(turn.is_void for turn in turns) if turns else is_empty,
            latency=Latency(moment.render_s, moment.generate_s, sum(turn.latency.env_s for turn in turns)),
        )


def _is_same(asked: object, call: ToolCall) -> bool:
    return isinstance(asked, ToolCall) and asked.name == call.name and dict(asked.arguments) == dict(call.arguments)


def _with_wire_ids(replies: Observation, asked: Sampled) -> Observation:
    """Return replies whose results hold the call ids that the agent received."""
    wire = iter(asked.returned.calls)
    ids = [next(wire).id if isinstance(call, ToolCall) else "" for call in asked.action.calls]  # type: ignore[union-attr]
    results = [at for at, reply in enumerate(replies) if reply.result is not None]
    known = dict(zip(results, ids, strict=False))
    return tuple(
        replace(reply, result=replace(reply.result, call_id=known.get(at, ""))) if reply.result is not None else reply
        for at, reply in enumerate(replies)
    )
