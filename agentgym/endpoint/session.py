"""One episode at the endpoint: it answers the agent's requests with the engine and records them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from agentgym.canonical import digest
from agentgym.endpoint.calls import Answer, AnswerToken, CallRefusedError, ChatCall
from agentgym.endpoint.graph import CallGraph, Prompt, Sampled, shown_text
from agentgym.engine import Engine, SamplingParams
from agentgym.errors import EngineError, InfrastructureError, UsageError, boundary
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.thinking_budget import generate_in_budget
from agentgym.types import Completion, FinishReason, JsonObject, Message, Status, ToolCall

# ------------------------------------------------------------------------ stop texts: find where they end a completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A completion that a stop text ended."""

    completion: Completion
    """Sampled tokens up to and including the one that completed the stop text."""
    text: str
    """Text before the stop text, thinking included."""
    stop: str


def stopped(
    completion: Completion, stops: Sequence[str], renderer: ChatRenderer, *, is_open: bool | None = None
) -> Stopped | None:
    """Return a completion shortened at the first stop text in it, or None if it contains none.

    Tokens are sampled one after the other, so the remaining tokens and log-probabilities equal those of an engine that
    stops there. Stop texts inside thinking do not count, since agents do not see the thinking.

    Args:
        is_open: True if the prompt opened the thinking.
    """
    ids = completion.token_ids
    text = renderer.text_of(ids)
    if not any(stop in text for stop in stops):
        return None
    num_thinking = renderer.num_thinking_tokens(ids, is_open=is_open)
    first = len(renderer.text_of(ids[:num_thinking])) if num_thinking else 0
    found = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop, first)) >= 0]
    if not found:
        return None
    end, start, stop = min(found)
    num_tokens = bisect_left(range(len(ids)), True, key=lambda num: renderer.text_of(ids[:num])[:end] == text[:end])
    cut = replace(
        completion,
        token_ids=ids[:num_tokens],
        logprobs=completion.logprobs[:num_tokens],
        policy_versions=completion.policy_versions[:num_tokens],
        finish_reason=FinishReason.STOP,
    )
    return Stopped(completion=cut, text=text[:start], stop=stop)


_MOST_IGNORED = 100
"""Most ignored fields that an episode notes. Agents choose the names."""
CallTool = Callable[[str, JsonObject], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPolicy:
    """The engine, renderer and settings that answer an agent's requests."""

    engine: Engine
    renderer: ChatRenderer
    sampling: SamplingParams
    window_tokens: int
    """Most tokens of prompt and completion together."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Facts about a completion besides its tokens."""

    state_key: str
    render_s: float
    generate_s: float


async def _never() -> bool:
    return False


class EpisodeSession:
    """The requests of one episode.

    A completion is recorded only if the agent is still connected. After the engine's first failure the episode has
    failed, whatever the agent does.

    Args:
        seed: seed from which completions derive theirs. In the first segment the seed depends on the depth, as in
            ``run_episode``; elsewhere on the prompt, so that the order of parallel calls does not matter.
        max_calls: most completions of the episode.
        state_key: function that returns the key of the environment's state; called before each completion.
    """

    def __init__(
        self, id: str, policy: EndpointPolicy, seed: int, max_calls: int, state_key: Callable[[], str]
    ) -> None:
        self.id = id
        self.graph = CallGraph(policy.renderer)
        self.moments: list[Moment] = []
        """Facts about the completions of the graph, one per completion."""
        self.failure: InfrastructureError | None = None
        self.refusal: tuple[Status, str] | None = None
        """Status and reason if the last request was rejected because of a limit; else None."""
        self.overridden: set[str] = set()
        self.ignored: set[str] = set()
        self.is_open = True
        self.is_state_hidden = False
        """True if the environment sees the agent's work only at the end. The prompt then serves as the state key."""
        self.call_tool: CallTool | None = None
        """Function that steps the environment with one call, for agents that call tools over HTTP."""
        self._policy, self._seed, self._max_calls, self._state_key = policy, seed, max_calls, state_key
        self._num_same: dict[str, int] = {}
        self._num_begun = self._num_started = 0
        self._num_sampling, self._sampled_s, self._sampling_since_s = 0, 0.0, 0.0
        self.is_cut = False
        """True if the token limit ended the last completion."""
        self._engine_sessions: set[str] = set()
        self._names: dict[int, str] = {}
        """Engine session of each segment."""

    async def answer(self, call: ChatCall, is_gone: Callable[[], Awaitable[bool]] = _never) -> Answer:
        """Sample the completion of a request.

        Args:
            is_gone: returns True if the agent has disconnected; the completion is then dropped.

        Raises:
            CallRefusedError: the prompt is too long or cannot be rendered, a limit is reached, or the engine failed.
        """
        self._check_open()
        self._take_notes(call)
        started = time.perf_counter()
        try:
            state_key = self._state_key()
            prompt = self._prompt(call)
            if self.is_state_hidden:
                state_key = digest([state_key, prompt.token_ids])
        except InfrastructureError as error:
            raise self._fail(error) from error
        try:
            sampling = self._sampling(prompt, call)
            render_s, started = time.perf_counter() - started, time.perf_counter()
            name = self._engine_session(prompt)
            completion = await self._sample(prompt, sampling, name)
            if not self.is_open or await is_gone():
                raise CallRefusedError("over", "The agent has gone.")
        except BaseException:
            self.graph.drop(prompt)
            raise
        self.refusal = None
        moment = Moment(state_key, render_s, time.perf_counter() - started)
        answer = self._recorded(call, prompt, completion, moment)
        self._names[self.graph.sampled[-1].segment] = name
        return answer

    def count(self, call: ChatCall) -> int:
        """Return the number of tokens of a request's prompt, without sampling.

        Raises:
            CallRefusedError: the episode has ended or failed, or the prompt cannot be rendered.
        """
        self._check_alive()
        self._take_notes(call)
        prompt = self._prompt(call)
        self.graph.drop(prompt)
        return len(prompt.token_ids)

    @property
    def sampling_s(self) -> float:
        """Seconds in which at least one completion was being sampled."""
        running_s = time.perf_counter() - self._sampling_since_s if self._num_sampling else 0.0
        return self._sampled_s + running_s

    def num_thinking_tokens(self, one: Sampled) -> int:
        """Return the number of thinking tokens at the start of a completion."""
        if not one.action.thinking:
            return 0
        renderer = self._policy.renderer
        prompt_ids = one.tokens[: len(one.tokens) - len(one.completion.token_ids)]
        return renderer.num_thinking_tokens(one.completion.token_ids, is_open=renderer.opens_after(prompt_ids))

    async def close(self) -> None:
        """Reject further requests and free the engine's cache of the episode."""
        self.is_open = False
        for name in sorted(self._engine_sessions):
            await self._policy.engine.release(name)

    # ---------------------------------------------------------------------------------------------------- private

    def _take_notes(self, call: ChatCall) -> None:
        self.overridden |= set(call.overridden)
        if len(self.ignored) < _MOST_IGNORED:
            self.ignored |= set(call.ignored[:_MOST_IGNORED])

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise CallRefusedError("engine", f"The episode has failed: {self.failure}")
        if not self.is_open:
            raise CallRefusedError("over", "The episode has ended.")

    def _check_open(self) -> None:
        self._check_alive()
        if self._num_started >= self._max_calls:
            message = f"The episode has a limit of {self._max_calls} calls."
            self.refusal = (Status.TRUNCATED_TURNS, message)
            raise CallRefusedError("limit", message)

    def _fail(self, error: InfrastructureError) -> CallRefusedError:
        self.failure = self.failure or error
        return CallRefusedError("engine", f"The episode has failed: {error}")

    def _prompt(self, call: ChatCall) -> Prompt:
        try:
            return self.graph.prompt(call.messages, call.tools)
        except UsageError as error:
            raise CallRefusedError("invalid", f"The model's chat template refuses the messages: {error}") from error

    def _sampling(self, prompt: Prompt, call: ChatCall) -> SamplingParams:
        policy = self._policy
        num_free = policy.window_tokens - len(prompt.token_ids)
        if num_free < 1:
            message = (
                f"This model's maximum context length is {policy.window_tokens} tokens. "
                f"However, your messages resulted in {len(prompt.token_ids)} tokens."
            )
            self.refusal = (Status.TRUNCATED_TOKENS, message)
            raise CallRefusedError("too_long", message, "messages")
        limits = (policy.sampling.max_completion_tokens, num_free, call.max_tokens or num_free)
        num_new = min(limits)
        num_thinking = min(policy.sampling.max_thinking_tokens, num_new - 1)
        return replace(
            policy.sampling,
            seed=self._seed_of(prompt),
            max_new_tokens=num_new - num_thinking,
            max_thinking_tokens=num_thinking,
            stop_token_ids=policy.renderer.turn_end_ids,
        )

    def _seed_of(self, prompt: Prompt) -> int:
        self._num_begun += prompt.segment < 0
        self._num_started += 1
        if prompt.is_main:
            return derive_seed(self._seed, prompt.depth)
        name = digest(prompt.token_ids)
        number = self._num_same[name] = self._num_same.get(name, -1) + 1
        return derive_seed(self._seed, "fork", name, number)

    def _engine_session(self, prompt: Prompt) -> str:
        """Return the engine session of a prompt: one for the main conversation and one for each other segment."""
        if prompt.segment in self._names:
            return self._names[prompt.segment]
        name = f"{self.id}-{'main' if prompt.is_main else self._num_begun}"
        self._engine_sessions.add(name)
        return name

    async def _sample(self, prompt: Prompt, sampling: SamplingParams, name: str) -> Completion:
        policy = self._policy
        if not self._num_sampling:
            self._sampling_since_s = time.perf_counter()
        self._num_sampling += 1
        try:
            with boundary(EngineError, "sampling"):
                return await generate_in_budget(policy.engine, policy.renderer, prompt.token_ids, sampling, name)
        except InfrastructureError as error:
            raise self._fail(error) from error
        finally:
            self._num_sampling -= 1
            if not self._num_sampling:
                self._sampled_s += time.perf_counter() - self._sampling_since_s

    def _recorded(self, call: ChatCall, prompt: Prompt, completion: Completion, moment: Moment) -> Answer:
        renderer = self._policy.renderer
        is_open = renderer.opens_after(prompt.token_ids)
        end = stopped(completion, call.stops, renderer, is_open=is_open)
        if end is not None:
            completion, self.is_cut = end.completion, False
            action = renderer.read_text(end.text, call.tools, is_open=is_open)
        else:
            self.is_cut = is_cut = completion.finish_reason is FinishReason.LENGTH
            action = renderer.read(completion.token_ids, call.tools, is_open=is_open, is_cut=is_cut)
        number = len(self.graph.sampled)
        well_formed = [one for one in action.calls if isinstance(one, ToolCall)]
        # deterministic, since some agents show the ids to the model
        calls = tuple(replace(one, id=f"call_{number}_{at}") for at, one in enumerate(well_formed))
        text = shown_text(action)
        stop = end.stop if end is not None else ""
        self.graph.add(prompt, completion, Message("assistant", text, calls), action, stop)
        self.moments.append(moment)
        return Answer(
            id=f"{self.id}-{number}",
            text=text,
            thinking=action.thinking,
            calls=calls,
            is_cut=completion.finish_reason is FinishReason.LENGTH,
            stop=stop,
            num_prompt_tokens=len(prompt.token_ids),
            num_completion_tokens=len(completion.token_ids),
            tokens=self._tokens(completion, end.text if end is not None else None) if call.wants_logprobs else (),
            prompt_ids=prompt.token_ids if call.wants_token_ids else (),
            completion_ids=completion.token_ids if call.wants_token_ids else (),
        )

    def _tokens(self, completion: Completion, before_stop: str | None) -> tuple[AnswerToken, ...]:
        """Return the tokens of a completion, except those that belong to the stop text only."""
        renderer, ids = self._policy.renderer, completion.token_ids
        return tuple(
            AnswerToken(renderer.text_of((one,)), logprob, renderer.token_bytes.of(one))
            for at, (one, logprob) in enumerate(zip(ids, completion.logprobs, strict=False))
            if before_stop is None or len(renderer.text_of(ids[:at])) < len(before_stop)
        )
