"""Agents, which choose the actions of an episode: a model behind an engine, or a script.

An agent serves one episode. The loop passes it the observations and asks it for decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentgym.engine import Engine, SamplingParams
from agentgym.env.env import Env
from agentgym.errors import EngineError, PolicyFaultError, boundary
from agentgym.rollout.branch import ForcedTokens
from agentgym.rollout.context import FULL, ContextConfig, Room, open_context
from agentgym.rollout.first_prompt import too_long
from agentgym.rollout.memory import scripted_summary
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.thinking_budget import generate_in_budget, moved_completion
from agentgym.types import (
    EMPTY_COMPLETION,
    Completion,
    FinishReason,
    Latency,
    Message,
    Observation,
    ToolSpec,
    Trajectory,
    Turn,
)

if TYPE_CHECKING:
    from agentgym.render.chat import ChatRenderer
    from agentgym.rollout.request import RolloutRequest


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, as a turn that the environment has not answered yet."""

    turn: Turn
    """The action, with its tokens if a model sampled it. A ``summary`` is for the agent's context alone."""
    begins_segment: bool = False

    @property
    def is_summary(self) -> bool:
        """True if the action is a summary of a full context, which the environment does not see."""
        return self.turn.kind == "summary"

    def as_turn(self, index: int, state_key: str) -> Turn:
        """Return the turn at its place in the episode."""
        turn = replace(self.turn, index=index, state_key=state_key)
        if not self.is_summary:
            return turn
        # credit compares summaries with summaries written in the same state, not with actions taken in it
        return replace(turn, state_key=f"summary in {state_key}", is_void=not turn.action.text.strip())


class Agent(Protocol):
    """The interface of an agent, which serves one episode."""

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        """Take the first observation of the episode."""
        ...

    async def decide(self) -> Decision | None:
        """Return the next decision, or None if the context has no room for one.

        Raises:
            PromptTooLongError: there is no room for the first one.
        """
        ...

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        """Take the reply to the last action, or to ``played`` if that replaced it. Summaries get no reply."""
        ...

    async def end(self) -> None:
        """Free the episode's resources. Always called, even after a failure."""
        ...


@runtime_checkable
class GuidedAgent(Agent, Protocol):
    """An agent that can continue another episode and take hints."""

    def repeat(self, turn: Turn) -> None:
        """Adopt a turn of another episode instead of calling :meth:`decide`."""
        ...

    def show(self, action: Message) -> None:
        """Append a hint at an action to the prompt of the next decision only."""
        ...

    def give(self, given: ForcedTokens) -> None:
        """Begin the next decision with given tokens."""
        ...


MakeAgent = Callable[[Env, int], Agent]
"""A function that makes the agent of one episode from its environment and the sampling seed."""


@runtime_checkable
class EpisodePlayer(Protocol):
    """A maker of agents that runs whole episodes itself, for programs with their own conversation with the policy.

    The rollout calls it in place of :func:`~agentgym.rollout.loop.run_episode`.
    """

    async def play_episode(self, env: Env, request: RolloutRequest) -> Trajectory:
        """Run one episode. Infrastructure failures set its status, as in ``run_episode``."""
        ...


class ModelAgent:
    """The agent of a policy behind an engine. It renders prompts, samples, parses, and holds the token buffer.

    Args:
        sampling: ``max_new_tokens`` limits an action; summaries have their own limit (``context``).
        context: which history goes into each prompt.
        max_turns: the environment's turn limit, for contexts that state the number of turns left.
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
            window=context.window(engine.max_context_tokens),
            completion=sampling.max_completion_tokens,
            max_turns=max_turns,
        )
        self._session_id = f"{seed:x}-{id(self):x}"
        self._num_decisions = 0
        self._render_s = 0.0
        self._hint: Message | None = None
        self._given: ForcedTokens | None = None

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        """Start the context with the first observation."""
        started = time.perf_counter()
        self._context = open_context(self._config, self._renderer, tools, observation, self._room)
        self._render_s = time.perf_counter() - started

    async def decide(self) -> Decision | None:
        """Sample and parse the next action, or return None if the context is full.

        Raises:
            PromptTooLongError: the first prompt leaves no room for a completion.
            EngineError: the engine failed.
        """
        context = self._context
        if context.max_new_tokens < 1:
            if not self._num_decisions:
                raise too_long(len(context.prompt_ids), self._room.window)
            return None
        hint, shown_ids = self._prompt()
        num_new = context.max_new_tokens
        num_thinking = min(self._sampling.max_thinking_tokens, num_new - 1)
        sampling = replace(
            self._sampling,
            seed=derive_seed(self._seed, self._num_decisions),
            max_new_tokens=num_new - num_thinking,
            max_thinking_tokens=num_thinking,
        )
        added_ids = context.added_ids
        begins_segment, is_summary, is_open = context.begins_segment, context.is_summarising, context.opens_thinking
        started = time.perf_counter()
        given = self._take_given()
        completion = await self._complete(shown_ids, sampling, given)
        generate_s = time.perf_counter() - started
        started = time.perf_counter()
        action = context.add_completion(completion)
        render_s = self._render_s + time.perf_counter() - started
        turn = Turn(
            kind="summary" if is_summary else "act",
            action=action,
            prompt_ids=added_ids,
            completion=completion,
            num_thinking_tokens=self._num_thinking(completion, is_open) if action.thinking else 0,
            hint=hint,
            num_copied_tokens=given.num_tokens if given else 0,
            num_rescored_tokens=len(given.moved.token_ids) if given and given.moved else 0,
            latency=Latency(render_s, generate_s, wait_s=completion.queued_s),
        )
        self._num_decisions += 1
        self._render_s = 0.0
        return Decision(turn, begins_segment)

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        """Append the replies to the context."""
        started = time.perf_counter()
        try:
            self._context.add_replies(replies, played)
        except Exception as error:
            self._blame(self._context.past[-1].action, error)
            raise
        self._render_s = time.perf_counter() - started

    def repeat(self, turn: Turn) -> None:
        """Append a turn of another episode to the context with its tokens."""
        self._context.add_completion(turn.completion)
        self._num_decisions += 1

    def show(self, action: Message) -> None:
        """Append a hint at an action to the next prompt only."""
        self._hint = action

    def give(self, given: ForcedTokens) -> None:
        """Begin the next completion with given tokens. They are left out if the context has no room for them."""
        self._given = given

    def _take_given(self) -> ForcedTokens | None:
        """Return the tokens that the next completion begins with; None if there are none or no room for them."""
        given, self._given = self._given, None
        context = self._context
        if given is None or context.is_summarising:
            return None
        # one token less than is free, since servers that score sample one more
        return given if given.num_tokens <= min(context.max_new_tokens, context.num_free_tokens - 1) else None

    async def _complete(
        self, prompt_ids: tuple[int, ...], sampling: SamplingParams, given: ForcedTokens | None
    ) -> Completion:
        engine = self._engine
        with boundary(EngineError, f"{type(engine).__name__}.generate"):
            if given is not None and given.moved is not None:
                return await moved_completion(engine, prompt_ids, given, sampling)
            begun = EMPTY_COMPLETION if given is None else given.known
            return await generate_in_budget(engine, self._renderer, prompt_ids, sampling, self._session_id, begun)

    def _prompt(self) -> tuple[str, tuple[int, ...]]:
        """Return the hint and the prompt with it. The hint is empty if there is none or no room for it."""
        context, action = self._context, self._hint
        self._hint = None
        if action is not None and not context.is_summarising:
            hint, shown_ids = context.hinted(action)
            if len(shown_ids) - len(context.prompt_ids) <= context.num_free_tokens - context.max_new_tokens:
                return hint, shown_ids
        return "", context.prompt_ids

    def _blame(self, action: str, error: Exception) -> None:
        """Raise :class:`PolicyFaultError` if the action itself cannot be rendered, independent of the replies."""
        try:
            self._renderer.prompt_ids((Message("user", "?"), Message("assistant", action), Message("user", "?")), ())
        except Exception:
            raise PolicyFaultError(f"the policy's message cannot be rendered: {error}") from error

    async def end(self) -> None:
        """Release the episode's sessions in the engine."""
        await self._engine.release(self._session_id)

    def _num_thinking(self, completion: Completion, is_open: bool) -> int:
        return self._renderer.num_thinking_tokens(completion.token_ids, is_open=is_open)


class ScriptedAgent:
    """An agent that applies a function to the last observation and has no tokens."""

    def __init__(self, choose: Callable[[Observation], Message]) -> None:
        self._choose = choose

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        """Store the first observation."""
        self._observation = observation

    async def decide(self) -> Decision | None:
        """Return the action that the function chooses."""
        return Decision(Turn(action=self._choose(self._observation)))

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        """Store the replies as the last observation."""
        self._observation = replies

    async def end(self) -> None:
        """Do nothing."""
        pass


NOT_TO_IMITATE = -1
"""Policy version of demonstrated tokens that must not be imitated."""


class DemonstrationAgent:
    """A scripted agent with a model's tokens, for demonstrations in supervised fine-tuning.

    When the context asks for a summary, it writes :func:`~agentgym.rollout.memory.scripted_summary`.

    Args:
        choose: chooses the next action. If it has an attribute ``was_random`` that is True, the action's tokens get the
            policy version :data:`NOT_TO_IMITATE`; all others get version 0.
        max_new_tokens, context, max_turns: the settings of the trained policy, so that segments begin at the same
            turns.
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
        self._has_acted = False

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        """Start the context with the first observation."""
        self._observation, self._tools = observation, tools
        self._context = open_context(self._config, self._renderer, tools, observation, self._room)

    async def decide(self) -> Decision | None:
        """Return the chosen action with its tokens, or None if the context is full.

        Raises:
            PromptTooLongError: there is no room for the first one.
        """
        context = self._context
        is_summary = context.is_summarising
        token_ids = self._summary_ids() if is_summary else self._action_ids(self._choose(self._observation))
        version = NOT_TO_IMITATE if not is_summary and getattr(self._choose, "was_random", False) else 0
        if len(token_ids) > context.num_free_tokens:
            if not self._has_acted:
                raise too_long(len(context.prompt_ids), self._room.window, len(token_ids))
            return None
        self._has_acted = True
        completion = Completion(
            token_ids=token_ids,
            logprobs=(0.0,) * len(token_ids),
            policy_versions=(version,) * len(token_ids),
            finish_reason=FinishReason.STOP,
        )
        added_ids, begins_segment = context.added_ids, context.begins_segment
        turn = Turn(
            kind="summary" if is_summary else "act",
            action=context.add_completion(completion),
            prompt_ids=added_ids,
            completion=completion,
        )
        return Decision(turn, begins_segment)

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        """Append the replies to the context."""
        self._observation = replies
        self._context.add_replies(replies, played)

    async def end(self) -> None:
        """Do nothing."""
        pass

    def _action_ids(self, action: Message) -> tuple[int, ...]:
        return self._renderer.action_ids(action, self._tools, is_open=self._context.opens_thinking)

    def _summary_ids(self) -> tuple[int, ...]:
        longest = self._context.max_new_tokens
        text = scripted_summary(self._context.past, lambda text: len(self._said_ids(text)) <= longest)
        return self._said_ids(text)

    def _said_ids(self, text: str) -> tuple[int, ...]:
        return self._renderer.action_ids(Message("assistant", text), (), is_open=self._context.opens_thinking)
