"""Build training rows from demonstrations: one row per segment (context window), with a loss weight for every token.

Tokens of the roles in ``sft.loss_roles`` have weight 1, all other tokens ``sft.observation_weight``. Which tokens
belong to a role:

* the assistant: its whole completions, including the token that ends them;
* another role: the contents of its messages, where they first appear;
* no role: the template's own tokens, tool descriptions, and messages that a later segment repeats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from agentgym.credit.table import Bools
from agentgym.errors import UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import NOT_TO_IMITATE
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.weighted_row import WeightedRow
from agentgym.types import Observation, Segment, Trajectory, Turn


def sft_rows(demos: Sequence[Trajectory], config: SftConfig, renderer: ChatRenderer) -> list[Row]:
    """Return the training rows of demonstrations, in order.

    Args:
        demos: episodes with token ids.
        config: the roles and weights of the loss.
        renderer: the chat renderer with which the token ids were made.

    Raises:
        UsageError: the chat template rewrites messages of a role in ``sft.loss_roles``, so that their tokens cannot be
            found.
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
            # Random actions are in the demonstrations to show the recovery from them, not to be imitated (DART).
            weights[is_sampled & weighs_one & ~_is_to_imitate(segment)] = config.noise_weight
            rows.append(WeightedRow(segment.token_ids, weights, is_sampled))
    return rows


def reply_rows(episodes: Sequence[Trajectory], renderer: ChatRenderer) -> list[Row]:
    """Return rows in which the environment's replies have weight 1 and all other tokens 0.

    Rows without a reply are left out. The first observation does not count as a reply. Neither do turns that a branch
    copied from its parent, nor episodes replayed from an earlier step. If the contents of messages cannot be separated
    from the template's tokens around them, those tokens have weight 1 too.

    Source: "ECHO: Terminal Agents Learn World Models for Free", whose loss adds a weight times the cross-entropy of the
    environment's tokens, of failures too.
    """
    rows = []
    for one in episodes:
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
                rows.append(
                    WeightedRow(segment.token_ids, wanted.astype(np.float32), np.asarray(segment.loss_mask, bool))
                )
    return rows


def _reply_mask(turn: Turn, messages: Observation, renderer: ChatRenderer, *, begins: bool) -> Bools:
    """Mark the tokens of a turn's prompt that are the environment's reply to the turn before, shape ``[T]``."""
    try:
        return _is_of_roles(Segment((turn,)), [messages], {"tool", "user"}, renderer, "")
    except UsageError:  # the tokens of the contents cannot be found, so the whole new part of the prompt counts
        size = 0 if begins or not messages else len(turn.prompt_ids)
        mask = np.zeros(len(turn.prompt_ids) + len(turn.completion.token_ids), dtype=bool)
        mask[:size] = True
        return mask


def digest_of(rows: Sequence[Row]) -> str:
    """Return a 128-bit hex digest of all tokens and weights, by which a resumed run detects changed demonstrations."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(np.asarray(row.token_ids, dtype=np.int64).tobytes())
        digest.update(row.over_tokens("loss_weight").tobytes())
    return digest.hexdigest()


def _is_to_imitate(segment: Segment) -> Bools:
    """Mark all tokens except those of random actions, shape ``[T]``."""
    flags: list[bool] = []
    for turn in segment.turns:
        flags += [True] * len(turn.prompt_ids)
        flags += [version != NOT_TO_IMITATE for version in turn.completion.policy_versions]
    return np.asarray(flags, dtype=bool)


def _with_messages(demo: Trajectory) -> Iterator[tuple[Segment, list[Observation]]]:
    """Yield every segment with, for each of its turns, the messages that appear in its prompt for the first time."""
    waiting = demo.observation
    for segment in demo.segments:
        if segment.agent:  # a record does not contain the instructions of a sub-agent
            yield segment, [() for _ in segment.turns]
            continue
        added = []
        for turn in segment.turns:
            # The prompt of a summary turn asks for the summary; the observation appears in the next segment.
            is_summary = turn.kind == "summary"
            added.append(() if is_summary else waiting)
            waiting = waiting if is_summary else turn.replies
        yield segment, added


def _is_of_roles(
    segment: Segment, added: Sequence[Observation], roles: set[str], renderer: ChatRenderer, otherwise: str
) -> Bools:
    """Mark the tokens of a segment that render the contents of new messages with these roles, shape ``[T]``.

    Args:
        segment: the context window.
        added: for each turn, the messages that are new in its prompt.
        roles: the roles to mark.
        renderer: the chat renderer with which the token ids were made.
        otherwise: the advice at the end of the error.

    Raises:
        UsageError: the contents of a message are not in the rendered prompt.
    """
    parts = []
    for turn, messages in zip(segment.turns, added, strict=True):
        mask = np.zeros(len(turn.prompt_ids), dtype=bool)
        wanted = [message for message in messages if message.role in roles and message.text.strip()]
        if wanted:
            text, spans = renderer.token_spans(turn.prompt_ids)
            end = len(text)
            # New messages are at the end of a prompt. Searching backwards keeps a repeated text from being found in an
            # earlier message.
            for message in reversed(messages):
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
