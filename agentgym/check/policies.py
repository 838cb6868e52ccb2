"""Policies without a model: random, do-nothing and gold actions, and an engine that answers from a function.

The first three choose an action for any environment; checks, ``agentgym play`` and baselines of an evaluation use them.
:class:`ScriptedEngine` is a fake language model for every place that takes an :class:`~agentgym.engine.Engine`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.call_syntax import format_call
from agentgym.engine import SamplingParams
from agentgym.env.actions import gold_action
from agentgym.env.env import Env
from agentgym.errors import ClosedError, EngineError
from agentgym.tool import random_call
from agentgym.types import Completion, FinishReason, Message, Observation

Policy = Callable[[Env, Observation, np.random.Generator], Message]
"""A function that chooses the next action from the environment, the last observation and a random generator."""

_NAMES = re.compile(r"(?<![^\W\d_])[^\W\d_]+ \d+")  # names of objects often end in a number, as in "cabinet 1"
_WORDS = re.compile(r"\w+")
_LONGEST_TEXT = 20_000  # words are drawn from so many characters of an observation


def random_action(env: Env, observation: Observation, rng: np.random.Generator) -> Message:
    """Return a random admissible action, or, if none are listed, a tool call or word made of the observation's words.

    Example:
        >>> from agentgym.env.env import Env
        >>> class Echo(Env):
        ...     def start(self, task):
        ...         return "hello"
        >>> env = Echo()
        >>> observation, _ = env.reset(seed=0)
        >>> random_action(env, observation, np.random.default_rng(0)).text
        'hello'
    """
    if admissible := env.admissible_actions():
        return env.parse_action(admissible[int(rng.integers(len(admissible)))])
    if env.tools:
        return random_tool_call(env, observation, rng)
    words = _words_of(observation)
    return Message("assistant", words[int(rng.integers(len(words)))])


def random_tool_call(env: Env, observation: Observation, rng: np.random.Generator) -> Message:
    """Return a random call that fits a tool's schema, with words from the observation. It is often impossible."""
    words = _words_of(observation)
    spec = env.tools[int(rng.integers(len(env.tools)))]
    call = random_call(spec, rng, words)
    return Message("assistant", format_call(call, env.tools), (call,))


def _words_of(observation: Observation) -> list[str]:
    text = " ".join(message.text for message in observation)[:_LONGEST_TEXT]
    return _NAMES.findall(text) or _WORDS.findall(text) or ["a"]


def noop_action(env: Env) -> Message:
    """Return an action that does nothing: an empty message without a call."""
    return Message("assistant", "")


def idle_action(env: Env) -> Message:
    """Return a useless text without a call. The score of this policy is the baseline of a suite."""
    return Message("assistant", "Sorry, I cannot help with that.")


def oracle_action(env: Env, observation: Observation, rng: np.random.Generator) -> Message:
    """Return the environment's gold action.

    Raises:
        UsageError: the environment has no oracle.
    """
    return gold_action(env)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A request to a :class:`ScriptedEngine`."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    session_id: str


class ScriptedEngine:
    """A fake engine that answers from a function of the prompt.

    It can imitate changing weight versions, slow answers that overtake each other, failures, and answers that reach the
    token limit.

    Args:
        answer: returns the tokens that follow a prompt; they are cut after a stop token and at ``max_new_tokens``.
        logprob: log-probability of every token.
        delays_s: seconds that successive requests take, repeated cyclically; empty for no delay.
        fail_requests: 0-based numbers of requests that raise :class:`~agentgym.errors.EngineError`.

    Example:
        >>> engine = ScriptedEngine(lambda prompt: [prompt[-1] + 1, 2, 9])
        >>> completion = asyncio.run(engine.generate([5, 6], SamplingParams(stop_token_ids=(2,))))
        >>> completion.token_ids, completion.finish_reason.value
        ((7, 2), 'stop')
    """

    def __init__(
        self,
        answer: Callable[[tuple[int, ...]], Sequence[int]],
        *,
        logprob: float = -0.5,
        policy_version: int = 0,
        max_context_tokens: int = 4096,
        delays_s: Sequence[float] = (),
        fail_requests: Collection[int] = (),
    ) -> None:
        self._answer = answer
        self._logprob = logprob
        self.policy_version = policy_version
        """Version set by the last :meth:`update_weights`."""
        self.max_context_tokens = max_context_tokens
        """Most tokens of prompt and completion together."""
        self._delays_s = tuple(delays_s)
        self._fail_requests = frozenset(fail_requests)
        self._is_closed = False
        self.requests: list[EngineRequest] = []
        """All requests so far, in order of arrival."""
        self.released: list[str] = []
        """Released sessions, in order."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session_id: str = ""
    ) -> Completion:
        """Return the tokens that ``answer`` gives for the prompt, with the current policy version for each token."""
        if self._is_closed:
            raise ClosedError("the engine is closed")
        prompt = tuple(prompt_ids)
        number = len(self.requests)
        self.requests.append(EngineRequest(prompt_ids=prompt, sampling=sampling, session_id=session_id))
        if self._delays_s:
            await asyncio.sleep(self._delays_s[number % len(self._delays_s)])
        if number in self._fail_requests:
            raise EngineError(f"request {number} fails by plan")
        room = self.max_context_tokens - len(prompt)
        if room < 1:
            raise EngineError(f"a prompt of {len(prompt)} tokens fills the context of {self.max_context_tokens}")
        token_ids, finish_reason = _cut(tuple(self._answer(prompt)), sampling, room)
        return Completion(
            token_ids=token_ids,
            logprobs=(self._logprob,) * len(token_ids),
            policy_versions=(self.policy_version,) * len(token_ids),
            finish_reason=finish_reason,
        )

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the constant log-probability for every token."""
        return (self._logprob,) * len(continuation_ids)

    async def release(self, session_id: str) -> None:
        """Record that the session has ended."""
        self.released.append(session_id)

    async def update_weights(self, version: int) -> None:
        """Set the policy version of later answers."""
        self.policy_version = version

    async def close(self) -> None:
        """Close the engine; later requests raise an error."""
        self._is_closed = True


def _cut(token_ids: tuple[int, ...], sampling: SamplingParams, room: int) -> tuple[tuple[int, ...], FinishReason]:
    limit = min(sampling.max_new_tokens, room)
    for at, token_id in enumerate(token_ids[:limit]):
        if token_id in sampling.stop_token_ids:
            return token_ids[: at + 1], FinishReason.STOP
    return token_ids[:limit], FinishReason.LENGTH
