"""Policies without a model: random, do-nothing, gold, and an engine that answers from a function.

The first three choose an action for any environment; checks, ``agentgym play`` and baselines of an evaluation use
them. :class:`ScriptedEngine` stands in for a language model wherever an :class:`~agentgym.engine.Engine` is expected.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.call_syntax import format_call
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import ClosedError, EngineError
from agentgym.tool import random_call
from agentgym.types import Completion, FinishReason, Message, Observation

Policy = Callable[[Env, Observation, np.random.Generator], Message]
"""Chooses the next action from the environment, what it said last, and a generator."""

_NAMES = re.compile(r"(?<![^\W\d_])[^\W\d_]+ \d+")  # "cabinet 1": names of things often end in a number
_WORDS = re.compile(r"\w+")
_LONGEST_TEXT = 20_000  # characters of an observation that words are drawn from


def random_action(env: Env, observation: Observation, rng: np.random.Generator) -> Message:
    """A random possible action; a random tool call, or word, made of the observation's words if none are listed.

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
    """A call that the schema of a random tool allows, of things the observation names; often impossible just now."""
    words = _words_of(observation)
    spec = env.tools[int(rng.integers(len(env.tools)))]
    call = random_call(spec, rng, words)
    return Message("assistant", format_call(call, env.tools), (call,))


def _words_of(observation: Observation) -> list[str]:
    text = " ".join(message.text for message in observation)[:_LONGEST_TEXT]
    return _NAMES.findall(text) or _WORDS.findall(text) or ["a"]


def noop_action(env: Env) -> Message:
    """An action that does nothing: an empty message without a call."""
    return Message("assistant", "")


def idle_action(env: Env) -> Message:
    """Words that help nobody, and no call: what a suite's score is worth is what lies above this policy's."""
    return Message("assistant", "Sorry, I cannot help with that.")


def oracle_action(env: Env, observation: Observation, rng: np.random.Generator) -> Message:
    """The environment's gold action; raises :class:`~agentgym.errors.UsageError` if it has none."""
    return env.oracle()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A request to a :class:`ScriptedEngine`."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    session_id: str


class ScriptedEngine:
    """An engine that answers from a function of the prompt.

    Everything a model does to its callers can be acted out: versions that move, slow answers that overtake each
    other, failures, answers that hit the token limit.

    Args:
        answer: gives the tokens that follow a prompt; cut after a stop token and at ``max_new_tokens``.
        logprob: the log-probability of every token.
        delays_s: how long the requests take in turn, starting anew when used up; none means at once.
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
        self._policy_version = policy_version
        self._max_context_tokens = max_context_tokens
        self._delays_s = tuple(delays_s)
        self._fail_requests = frozenset(fail_requests)
        self._is_closed = False
        self.requests: list[EngineRequest] = []
        """Every request so far, in order of arrival."""
        self.released: list[str] = []
        """The sessions that were released, in order."""

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def max_context_tokens(self) -> int:
        return self._max_context_tokens

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session_id: str = ""
    ) -> Completion:
        """Return what ``answer`` gives for the prompt; each token carries the version in force when it was given."""
        if self._is_closed:
            raise ClosedError("the engine is closed")
        prompt = tuple(prompt_ids)
        number = len(self.requests)
        self.requests.append(EngineRequest(prompt_ids=prompt, sampling=sampling, session_id=session_id))
        if self._delays_s:
            await asyncio.sleep(self._delays_s[number % len(self._delays_s)])
        if number in self._fail_requests:
            raise EngineError(f"request {number} fails by plan")
        room = self._max_context_tokens - len(prompt)
        if room < 1:
            raise EngineError(f"a prompt of {len(prompt)} tokens fills the context of {self._max_context_tokens}")
        token_ids, finish_reason = _cut(tuple(self._answer(prompt)), sampling, room)
        return Completion(
            token_ids=token_ids,
            logprobs=(self._logprob,) * len(token_ids),
            policy_versions=(self._policy_version,) * len(token_ids),
            finish_reason=finish_reason,
        )

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """The constant log-probability for every token."""
        return (self._logprob,) * len(continuation_ids)

    async def release(self, session_id: str) -> None:
        """Note that the session has ended."""
        self.released.append(session_id)

    async def update_weights(self, version: int) -> None:
        """Answer as another version from now on."""
        self._policy_version = version

    async def close(self) -> None:
        """Refuse further requests."""
        self._is_closed = True


def _cut(token_ids: tuple[int, ...], sampling: SamplingParams, room: int) -> tuple[tuple[int, ...], FinishReason]:
    limit = min(sampling.max_new_tokens, room)
    for at, token_id in enumerate(token_ids[:limit]):
        if token_id in sampling.stop_token_ids:
            return token_ids[: at + 1], FinishReason.STOP
    return token_ids[:limit], FinishReason.LENGTH
