"""Who decides in an episode: a model behind an engine, or a scripted policy.

An actor serves one episode. The loop tells it what the environment says and asks it for decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agentgym.engine import Engine, SamplingParams
from agentgym.env import Env
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.session import Session
from agentgym.types import EMPTY_COMPLETION, Completion, FinishReason, Message, Observation, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action, with the tokens it was made of where a model made it."""

    action: Message
    prompt_ids: tuple[int, ...] = ()
    completion: Completion = EMPTY_COMPLETION
    begins_segment: bool = False
    render_s: float = 0.0
    generate_s: float = 0.0


class Actor(Protocol):
    """Decides in one episode."""

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        """The episode's first observation."""
        ...

    async def decide(self) -> Decision | None:
        """The next action, or None if the context has no room for one."""
        ...

    def observe(self, replies: Observation) -> None:
        """What the environment answered to the last action."""
        ...

    async def end(self) -> None:
        """The episode is over, whatever the reason."""
        ...


MakeActor = Callable[[Env, int], Actor]
"""Makes the actor of one episode from its environment and the seed of the policy's sampling."""


class ModelActor:
    """A policy behind an engine: renders, samples, reads; keeps the token buffer."""

    def __init__(self, engine: Engine, renderer: ChatRenderer, sampling: SamplingParams, seed: int) -> None:
        self._engine = engine
        self._renderer = renderer
        self._sampling = replace(sampling, stop_token_ids=renderer.turn_end_ids)
        self._seed = seed
        self._session_id = f"{seed:x}-{id(self):x}"
        self._num_decisions = 0
        self._begins_segment = True
        self._render_s = 0.0

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        started = time.perf_counter()
        self._session = Session(self._renderer, tools, observation)
        self._render_s = time.perf_counter() - started

    async def decide(self) -> Decision | None:
        room = self._engine.max_context_tokens - self._session.num_tokens
        if room < 1:
            return None
        sampling = replace(
            self._sampling,
            seed=derive_seed(self._seed, self._num_decisions),
            max_new_tokens=min(self._sampling.max_new_tokens, room),
        )
        prompt_ids, added_ids = self._session.prompt_ids, self._session.added_ids
        started = time.perf_counter()
        completion = await self._engine.generate(prompt_ids, sampling, session_id=self._session_id)
        generate_s = time.perf_counter() - started
        started = time.perf_counter()
        action = self._session.add_completion(completion)
        decision = Decision(
            action=action,
            prompt_ids=added_ids,
            completion=completion,
            begins_segment=self._begins_segment,
            render_s=self._render_s + time.perf_counter() - started,
            generate_s=generate_s,
        )
        self._num_decisions += 1
        return decision

    def observe(self, replies: Observation) -> None:
        started = time.perf_counter()
        self._begins_segment = self._session.add_replies(replies)
        self._render_s = time.perf_counter() - started

    async def end(self) -> None:
        await self._engine.release(self._session_id)


class ScriptedActor:
    """A policy that is a function of the environment and its last observation, without tokens."""

    def __init__(self, choose: Callable[[Observation], Message]) -> None:
        self._choose = choose

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        self._observation = observation

    async def decide(self) -> Decision | None:
        return Decision(action=self._choose(self._observation))

    def observe(self, replies: Observation) -> None:
        self._observation = replies

    async def end(self) -> None:
        pass


class DemonstrationActor:
    """A scripted policy written down in a model's tokens: what supervised fine-tuning learns from."""

    def __init__(
        self, choose: Callable[[Observation], Message], renderer: ChatRenderer, max_context_tokens: int
    ) -> None:
        self._choose = choose
        self._renderer = renderer
        self._max_context_tokens = max_context_tokens
        self._begins_segment = True

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        self._observation, self._tools = observation, tools
        self._session = Session(self._renderer, tools, observation)

    async def decide(self) -> Decision | None:
        chosen = self._choose(self._observation)
        token_ids = self._renderer.action_ids(chosen, self._tools)
        if self._session.num_tokens + len(token_ids) > self._max_context_tokens:
            return None
        completion = Completion(
            token_ids=token_ids,
            logprobs=(0.0,) * len(token_ids),
            policy_versions=(0,) * len(token_ids),
            finish_reason=FinishReason.STOP,
        )
        added_ids = self._session.added_ids
        action = self._session.add_completion(completion)
        return Decision(
            action=action,
            prompt_ids=added_ids,
            completion=completion,
            begins_segment=self._begins_segment,
        )

    def observe(self, replies: Observation) -> None:
        self._observation = replies
        self._begins_segment = self._session.add_replies(replies)

    async def end(self) -> None:
        pass
