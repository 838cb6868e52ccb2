"""The policy reads its failed episode, names the turn that went wrong, and advises itself for another try.

Source: "Reflect-then-Retry Reinforcement Learning" (R3L). The advice is a hint of the retry's first turn, which is left
out of what is trained.
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
LONGEST_ADVICE = 400
"""Characters of an advice that are shown."""


@dataclass(frozen=True, slots=True)
class Reflection:
    """A policy's verdict on a failed episode."""

    num_tokens: int
    """Tokens sampled for it."""
    turn: int = 0
    """The turn to begin again with, counted from 0; 0 where the policy named none."""
    advice: str = ""


Reflect = Callable[[Trajectory, int], Awaitable[Reflection]]
"""Makes a reflection on an episode with a sampling seed."""


def reflect_with(engine: Engine, renderer: ChatRenderer, sampling: SamplingParams) -> Reflect:
    """Return what asks the policy behind an engine."""

    async def reflect(trajectory: Trajectory, seed: int) -> Reflection:
        plain = replace(sampling, seed=seed, max_thinking_tokens=0, stop_token_ids=renderer.turn_end_ids)
        room = engine.max_context_tokens - plain.max_new_tokens
        max_chars = 4 * room
        while True:  # shorter transcripts until one fits
            told = QUESTION.format(episode=transcript(trajectory, max_chars))
            prompt_ids = renderer.prompt_ids((Message("user", told),), ())
            if len(prompt_ids) <= room:
                break
            max_chars //= 2
            if max_chars < 200:
                return Reflection(0)
        try:
            completion = await engine.generate(prompt_ids, plain)
        except EngineError:  # the retry itself will meet the same engine, and say so
            return Reflection(0)
        said = renderer.read(completion.token_ids, ()).text
        return read_reflection(said, len(trajectory.turns), len(completion.token_ids))

    return reflect


def read_reflection(text: str, num_turns: int, num_tokens: int) -> Reflection:
    """Return what an answer says, nothing if it names no turn of the episode or gives no advice.

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
