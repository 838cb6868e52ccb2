"""Demonstrations to training rows: one row per segment, with a loss weight on every token.

One rule sets the weights: tokens of ``sft.loss_roles`` weigh 1, and all other tokens weigh ``sft.observation_weight``.
Tokens of the assistant are its whole completions, with the token that ends them. Tokens of another role are the
contents of its messages, where they first appear. The others are the template's own tokens, tool descriptions, and
messages that a later segment repeats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentgym.credit.table import Bools
from agentgym.errors import UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import NOT_TO_IMITATE
from agentgym.trainers.config.sft import SftConfig
from agentgym.types import Observation, Segment, Trajectory, Turn


@dataclass(frozen=True, slots=True, eq=False)
class SftRow:
    """One training row; all columns have length ``T``."""

    token_ids: tuple[int, ...]
    weights: NDArray[np.float32]
    """Loss weights; that of the first token is never used."""
    is_sampled: Bools
    """True on the tokens of the assistant's messages, which a policy would sample."""


def sft_rows(demos: Sequence[Trajectory], config: SftConfig, renderer: ChatRenderer) -> list[SftRow]:
    """Return the training rows of demonstrations, in order.

    Raises:
        UsageError: the chat template rewrites messages of a role that ``sft.loss_roles`` names.
    """
    others: set[str] = {role for role in config.loss_roles if role != "assistant"}
    rows = []
    for demo in demos:
        for segment, added in _with_messages(demo):
            is_sampled = np.asarray(segment.loss_mask, dtype=bool)
            weighs_one = is_sampled if "assistant" in config.loss_roles else np.zeros_like(is_sampled)
            if others:
                of_roles = _is_of_roles(segment, added, others, renderer, "leave the role out of sft.loss_roles")
                weighs_one = weighs_one | of_roles
            weights = np.where(weighs_one, 1.0, config.observation_weight).astype(np.float32)
            weights[is_sampled & weighs_one & ~_is_to_imitate(segment)] = config.noise_weight
            rows.append(SftRow(segment.token_ids, weights, is_sampled))
    return rows


def reply_rows(trajectories: Sequence[Trajectory], renderer: ChatRenderer) -> list[SftRow]:
    """Return rows in which what environments answered weighs 1, and all else 0; rows without an answer are left out.

    The first observation is no answer. Nor are turns that were copied or belong to an earlier step. Where the contents
    of messages cannot be told from the template's tokens around them, these weigh 1, too.
    """
    rows = []
    for one in trajectories:
        if one.replayed_step is not None:
            continue
        seen = 0
        for segment, added in _with_messages(one):
            masks = [
                _reply_mask(turn, messages, renderer, begins=at == 0)
                if seen + at > one.branch_turn
                else np.zeros(len(turn.prompt_ids) + len(turn.completion.token_ids), dtype=bool)
                for at, (turn, messages) in enumerate(zip(segment.turns, added, strict=True))
            ]
            seen += len(added)
            wanted = np.concatenate(masks) if masks else np.zeros(0, dtype=bool)
            if wanted.any():
                rows.append(SftRow(segment.token_ids, wanted.astype(np.float32), np.asarray(segment.loss_mask, bool)))
    return rows


def _reply_mask(turn: Turn, messages: Observation, renderer: ChatRenderer, *, begins: bool) -> Bools:
    """Return which tokens of a turn are the environment's answer to the one before; of a new prompt contents alone."""
    try:
        return _is_of_roles(Segment((turn,)), [messages], {"tool", "user"}, renderer, "")
    except UsageError:  # the tokenizer encodes a part of a conversation otherwise, or the template rewrites messages
        size = 0 if begins or not messages else len(turn.prompt_ids)
        mask = np.zeros(len(turn.prompt_ids) + len(turn.completion.token_ids), dtype=bool)
        mask[:size] = True
        return mask


def digest_of(rows: Sequence[SftRow]) -> str:
    """Return a 128-bit hex digest of all tokens and weights."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(np.asarray(row.token_ids, dtype=np.int64).tobytes())
        digest.update(row.weights.tobytes())
    return digest.hexdigest()


def _is_to_imitate(segment: Segment) -> Bools:
    """Return False for the tokens of random actions, shape ``[T]``."""
    flags: list[bool] = []
    for turn in segment.turns:
        flags += [True] * len(turn.prompt_ids)
        flags += [version != NOT_TO_IMITATE for version in turn.completion.policy_versions]
    return np.asarray(flags, dtype=bool)


def _with_messages(demo: Trajectory) -> Iterator[tuple[Segment, list[Observation]]]:
    """Yield every segment with the messages that each of its turns is the first to show."""
    waiting = demo.observation
    for segment in demo.segments:
        if segment.agent:  # the record does not hold what a sub-agent was told
            yield segment, [() for _ in segment.turns]
            continue
        added = []
        for turn in segment.turns:
            is_summary = turn.kind == "summary"  # its prompt asks for it, and the next segment shows the observation
            added.append(() if is_summary else waiting)
            waiting = waiting if is_summary else turn.replies
        yield segment, added


def _is_of_roles(
    segment: Segment, added: Sequence[Observation], roles: set[str], renderer: ChatRenderer, otherwise: str
) -> Bools:
    """Return which tokens of a segment render the contents of new messages of these roles, shape ``[T]``.

    Raises:
        UsageError: they cannot be found; the message ends with ``otherwise``.
    """
    parts = []
    for turn, messages in zip(segment.turns, added, strict=True):
        mask = np.zeros(len(turn.prompt_ids), dtype=bool)
        wanted = [message for message in messages if message.role in roles and message.text.strip()]
        if wanted:
            text, spans = renderer.token_spans(turn.prompt_ids)
            end = len(text)
            for message in reversed(messages):  # what is new stands at the end of a prompt
                content = message.text.strip()
                at = text.rfind(content, 0, end) if content else end
                if at < 0 and message.role in roles:
                    raise UsageError(
                        f"the model's chat template rewrites the {message.role} message {content[:40]!r}, so its "
                        f"tokens cannot be found: {otherwise}"
                    )
                if at < 0:
                    continue
                if message.role in roles:
                    mask |= np.array([start < at + len(content) and stop > at for start, stop in spans], dtype=bool)
                end = at
        parts += [mask, np.zeros(len(turn.completion.token_ids), dtype=bool)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=bool)
