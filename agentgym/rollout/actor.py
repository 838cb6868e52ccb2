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
from agentgym.rollout.context import FULL, ContextConfig, Room, open_context
from agentgym.rollout.memory import scripted_summary
from agentgym.rollout.seeds import derive_seed
from agentgym.types import (
    EMPTY_COMPLETION,
    Completion,
    FinishReason,
    Latency,
    Message,
    Observation,
    ToolSpec,
    Turn,
    Usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action, with the tokens it was made of where a model made it."""

    action: Message
    prompt_ids: tuple[int, ...] = ()
    completion: Completion = EMPTY_COMPLETION
    usage: Usage | None = None
    """What an endpoint counted that gives no token ids."""
    begins_segment: bool = False
    is_summary: bool = False
    """The context was full and this is what the policy keeps of it: nothing for the environment."""
    render_s: float = 0.0
    generate_s: float = 0.0

    def as_turn(self, index: int, state_key: str) -> Turn:
        """Return the turn that records this decision, before the environment has answered."""
        turn = Turn(
            index=index,
            prompt_ids=self.prompt_ids,
            completion=self.completion,
            usage=self.usage,
            action=self.action,
            state_key=state_key,
            latency=Latency(self.render_s, self.generate_s),
        )
        if not self.is_summary:
            return turn
        # summaries are compared with summaries written in the same state, not with the actions taken in it
        return replace(turn, kind="summary", state_key=f"summary in {state_key}", is_void=not self.action.text.strip())


class Actor(Protocol):
    """Decides in one episode."""

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        """The episode's first observation."""
        ...

    async def decide(self) -> Decision | None:
        """The next action, or None if the context has no room for one."""
        ...

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        """What the environment answered to the last action, or to what was played in its place.

        A summary has no answer.
        """
        ...

    async def end(self) -> None:
        """The episode is over, whatever the reason."""
        ...


MakeActor = Callable[[Env, int], Actor]
"""Makes the actor of one episode from its environment and the seed of the policy's sampling."""


class ModelActor:
    """A policy behind an engine: renders, samples, reads; keeps the token buffer.

    Args:
        sampling: ``max_new_tokens`` is the longest action; a summary has a limit of its own (``context``).
        context: what of the episode each prompt holds.
        max_turns: the environment's limit, for contexts that tell how many turns are left.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: ChatRenderer,
        sampling: SamplingParams,
        seed: int,
        context: ContextConfig = FULL,
        max_turns: int | None = None,
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._sampling = replace(sampling, stop_token_ids=renderer.turn_end_ids)
        self._seed = seed
        self._config = context
        self._room = Room(
            window=context.window(engine.max_context_tokens), completion=sampling.max_new_tokens, max_turns=max_turns
        )
        self._session_id = f"{seed:x}-{id(self):x}"
        self._num_decisions = 0
        self._render_s = 0.0

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        started = time.perf_counter()
        self._context = open_context(self._config, self._renderer, tools, observation, self._room)
        self._render_s = time.perf_counter() - started

    async def decide(self) -> Decision | None:
        context = self._context
        if context.max_new_tokens < 1:
            return None
        sampling = replace(
            self._sampling,
            seed=derive_seed(self._seed, self._num_decisions),
            max_new_tokens=context.max_new_tokens,
        )
        prompt_ids, added_ids = context.prompt_ids, context.added_ids
        begins_segment, is_summary = context.begins_segment, context.is_summarising
        started = time.perf_counter()
        completion = await self._engine.generate(prompt_ids, sampling, session_id=self._session_id)
        generate_s = time.perf_counter() - started
        started = time.perf_counter()
        action = context.add_completion(completion)
        decision = Decision(
            action=action,
            prompt_ids=added_ids,
            completion=completion,
            begins_segment=begins_segment,
            is_summary=is_summary,
            render_s=self._render_s + time.perf_counter() - started,
            generate_s=generate_s,
        )
        self._num_decisions += 1
        self._render_s = 0.0
        return decision

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        started = time.perf_counter()
        self._context.add_replies(replies, played)
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

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        self._observation = replies

    async def end(self) -> None:
        pass


class DemonstrationActor:
    """A scripted policy written down in a model's tokens: what supervised fine-tuning learns from.

    Where the context asks for a summary, it is :func:`~agentgym.rollout.memory.scripted_summary`.

    Args:
        max_new_tokens, context, max_turns: those of the policy that learns, so that contexts change where its own do.
    """

    def __init__(
        self,
        choose: Callable[[Observation], Message],
        renderer: ChatRenderer,
        max_context_tokens: int,
        max_new_tokens: int = 64,
        context: ContextConfig = FULL,
        max_turns: int | None = None,
    ) -> None:
        self._choose = choose
        self._renderer = renderer
        self._config = context
        self._room = Room(window=context.window(max_context_tokens), completion=max_new_tokens, max_turns=max_turns)

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        self._observation, self._tools = observation, tools
        self._context = open_context(self._config, self._renderer, tools, observation, self._room)

    async def decide(self) -> Decision | None:
        context = self._context
        is_summary = context.is_summarising
        token_ids = self._summary_ids() if is_summary else self._action_ids(self._choose(self._observation))
        if len(token_ids) > context.num_free_tokens:
            return None
        completion = Completion(
            token_ids=token_ids,
            logprobs=(0.0,) * len(token_ids),
            policy_versions=(0,) * len(token_ids),
            finish_reason=FinishReason.STOP,
        )
        added_ids, begins_segment = context.added_ids, context.begins_segment
        return Decision(
            action=context.add_completion(completion),
            prompt_ids=added_ids,
            completion=completion,
            begins_segment=begins_segment,
            is_summary=is_summary,
        )

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        self._observation = replies
        self._context.add_replies(replies, played)

    async def end(self) -> None:
        pass

    def _action_ids(self, action: Message) -> tuple[int, ...]:
        return self._renderer.action_ids(action, self._tools)

    def _summary_ids(self) -> tuple[int, ...]:
        longest = self._context.max_new_tokens
        text = scripted_summary(self._context.past, lambda text: len(self._said_ids(text)) <= longest)
        return self._said_ids(text)

    def _said_ids(self, text: str) -> tuple[int, ...]:
        return self._renderer.action_ids(Message("assistant", text), ())
