"""Token ids as text, piece by piece, with facts about each token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.errors import CorruptDataError
from agentgym.rollout.token_scores import TurnScores
from agentgym.types import Turn, TurnCredit

_LONGEST_CHARACTER = 4  # at most so many tokens share one UTF-8 character
MOST_TOKENS = 1_500
"""Most tokens of a turn in a page."""
_LOWEST = -100.0
"""Replacement for the log-probability of 0, which JSON cannot represent."""


class TokenText:
    """A decoder that uses a run's ``tokenizer.json``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._kept_text = lru_cache(maxsize=1 << 16)(self.text)

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode a sequence to text, special tokens included."""
        return str(self._tokenizer.decode([one for one in token_ids if one >= 0], skip_special_tokens=False))

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the text that each token adds. Joined, the pieces are the whole text.

        A character that several tokens share belongs to the last of them; the others are empty.
        """
        pieces: list[str] = []
        before: list[int] = []  # the decoder needs the previous token to decide about a leading space
        pending: list[int] = []
        for token_id in token_ids:
            pending.append(token_id)
            # a run says the same few tokens again and again
            piece = self._kept_text((*before, *pending))[len(self._kept_text(tuple(before))) :]
            if piece.endswith("\ufffd") and len(pending) < _LONGEST_CHARACTER:
                pieces.append("")
                continue
            pieces.append(piece)
            before, pending = [token_id], []
        if pending:
            pieces[-1] = "\ufffd"
        return pieces


def load_token_text(path: Path) -> TokenText | None:
    """Load a ``tokenizer.json``; return None if there is none or ``tokenizers`` is not installed.

    Raises:
        CorruptDataError: the file is not a tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    if not path.is_file():
        return None
    try:
        return TokenText(Tokenizer.from_file(str(path)))
    except Exception as error:  # tokenizers raises plain Exception
        raise CorruptDataError(f"{path} is not a tokenizer ({error})") from error


def token_columns(
    turn: Turn,
    decode: TokenText | None,
    credit: TurnCredit | None = None,
    scores: TurnScores | None = None,
    entropies: Sequence[float] | None = None,
    *,
    is_dropped: bool = False,
) -> dict[str, Any]:
    """Return columns with one value per sampled token of a turn; None for a column that is not known.

    ``tokens`` are texts; ``logprobs`` the engine's and ``trainer`` the trainer's log-probabilities; ``entropies`` in
    nats; ``advantages`` if credit works on tokens; ``trained`` 1 or 0. ``gap`` is the mean and the largest difference
    between trainer and engine over the turn.

    Args:
        entropies: entropies from before the update, if credit used them; by default the trainer's.
        is_dropped: True if the group was left out of the update.
    """
    completion = turn.completion
    count = len(completion.token_ids)
    if not count:
        return {"tokens": None, "trained": None, "gap": None}
    found: dict[str, Any] = {
        "tokens": None if decode is None else decode.pieces(completion.token_ids[:MOST_TOKENS]),
        "logprobs": _shown(completion.logprobs),
        "trained": None if credit is None else _trained(credit, count, is_dropped),
        "gap": None,
    }
    if credit is not None and credit.token_advantages:
        found["advantages"] = _shown(credit.token_advantages)
    if entropies is None and scores is not None:
        found["entropies"] = _shown(scores.entropies)
    elif entropies is not None:
        found["entropies"] = _shown(entropies)
    if scores is not None:
        found["trainer"] = _shown(scores.logprobs)
        pairs = zip(scores.logprobs, completion.logprobs, strict=False)
        gaps = [abs(trainer - engine) for trainer, engine in pairs if trainer is not None]
        found["gap"] = [float(f"{value:.4g}") for value in (sum(gaps) / len(gaps), max(gaps))] if gaps else None
    return found


def _trained(credit: TurnCredit, count: int, is_dropped: bool) -> int | list[int]:
    """Return the loss mask of a turn's tokens, or one number if it is the same for all."""
    if is_dropped or credit.loss_weight == 0:
        return 0
    return [int(keep) for keep in credit.token_keep[:count]] if credit.token_keep else 1


def _shown(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{max(value, _LOWEST):.4g}") for value in values[:MOST_TOKENS]]
