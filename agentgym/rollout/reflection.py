"""Reflection: the policy reads its failed episode, names the turn that went wrong, and gives itself advice for a retry.

Source: "Reflect-then-Retry Reinforcement Learning" (R3L). The advice is a hint in the first prompt of the retry, which
training omits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentgym.engine import Engine, SamplingParams
from agentgym.errors import EngineError
from agentgym.rollout.transcript import read_answer_object, transcript
from agentgym.types import Message, Trajectory

if TYPE_CHECKING:
    from agentgym.render.chat import ChatRenderer

QUESTION = (
    "An agent failed in this episode. Each line is one JSON object.\n{episode}\n"
    "Which turn was the first mistake, and what should be done there instead? Answer with one JSON object and nothing "
    'else: {{"turn": NUMBER, "advice": "one sentence"}}'
)
NUM_TOKENS = 256
"""Largest length of a reflection where a strategy names none."""
LONGEST_ADVICE = 400
"""Most characters of the advice that the prompt shows."""


@dataclass(frozen=True, slots=True)
class Reflection:
    """A policy's verdict on a failed episode."""

    num_tokens: int
    """Tokens sampled for the reflection."""
    turn: int = 0
    """Turn at which to begin the retry, counted from 0; 0 if the policy named none."""
    advice: str = ""


Reflect = Callable[[Trajectory, int], Awaitable[Reflection]]
"""A function that reflects on an episode with a sampling seed."""


def reflect_with(engine: Engine, renderer: ChatRenderer, sampling: SamplingParams, max_new_tokens: int) -> Reflect:
    """Return the function that lets the policy behind an engine reflect on an episode.

    Args:
        sampling: how actions are sampled.
        max_new_tokens: largest length of a reflection, which is no action and has another length; half of the context
            at most.
    """

    async def reflect(trajectory: Trajectory, seed: int) -> Reflection:
        longest = min(max_new_tokens, engine.max_context_tokens // 2)
        plain = replace(
            sampling,
            seed=seed,
            max_new_tokens=longest,
            max_thinking_tokens=0,
            stop_token_ids=renderer.turn_end_ids,
        )
        room = engine.max_context_tokens - longest
        max_chars = 4 * room
        while True:  # try shorter transcripts until one fits
            told = QUESTION.format(episode=transcript(trajectory, max_chars))
            prompt_ids = renderer.prompt_ids((Message("user", told),), ())
            if len(prompt_ids) <= room:
                break
            max_chars //= 2
            if max_chars < 200:
                return Reflection(0)
        try:
            completion = await engine.generate(prompt_ids, plain)
        except EngineError:  # the retry will use the same engine and report its failure
            return Reflection(0)
        said = renderer.read(completion.token_ids, ()).text
        return read_reflection(said, len(trajectory.turns), len(completion.token_ids))

    return reflect


def read_reflection(text: str, num_turns: int, num_tokens: int) -> Reflection:
    """Parse an answer. The reflection is empty if the answer names no turn of the episode or gives no advice.

    Example:
        >>> read_reflection('{"turn": 3, "advice": "Open it first."}', 5, 20)
        Reflection(num_tokens=20, turn=2, advice='Open it first.')
        >>> read_reflection("The third.", 5, 4)
        Reflection(num_tokens=4, turn=0, advice='')
    """
    try:
        answer = read_answer_object(text)
    except ValueError:
        return Reflection(num_tokens)
    turn, advice = answer.get("turn"), answer.get("advice")
    if isinstance(turn, bool) or not isinstance(turn, int) or not 1 <= turn <= num_turns:
        return Reflection(num_tokens)
    if not isinstance(advice, str) or not advice.strip():
        return Reflection(num_tokens)
    return Reflection(num_tokens, max(1, turn - 1), advice.strip()[:LONGEST_ADVICE])
