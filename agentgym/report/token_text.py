"""Token ids as text, piece by piece, with what is known of each token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.errors import CorruptDataError
from agentgym.rollout.token_scores import TurnScores
from agentgym.types import Turn, TurnCredit

_LONGEST_CHARACTER = 4  # tokens that can share one character of UTF-8
MOST_TOKENS = 1_500
"""Tokens of a turn that a page holds."""
_LOWEST = -100.0
"""In place of the log-probability of 0, which has no JSON number."""


class TokenText:
    """Decodes with a run's ``tokenizer.json``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of a sequence, special tokens included."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text each token adds; joined they are the whole text.

        A character that several tokens share is given to the last of them, the others are empty.
        """
        pieces: list[str] = []
        before: list[int] = []  # the token before gives the decoder the context that decides about a leading space
        pending: list[int] = []
        for token_id in token_ids:
            pending.append(token_id)
            piece = self.text([*before, *pending])[len(self.text(before)) :]
            if piece.endswith("\ufffd") and len(pending) < _LONGEST_CHARACTER:
                pieces.append("")
                continue
            pieces.append(piece)
            before, pending = [token_id], []
        if pending:
            pieces[-1] = "\ufffd"
        return pieces


def load_token_text(path: Path) -> TokenText | None:
    """The decoder of a ``tokenizer.json``; None if there is none or ``tokenizers`` is not installed.

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
    except Exception as error:  # the library raises bare Exception
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
    """Return what is known of a turn's sampled tokens, each column one value per token, or None if it is not known.

    ``tokens`` is their text, ``logprobs`` those of the engine, ``trainer`` the trainer's, ``entropies`` in nats,
    ``advantages`` where credit works on tokens, ``trained`` 1 or 0; ``gap`` is the mean and the largest difference of
    trainer and engine over the turn.

    Args:
        entropies: from before the update, where credit read them; the trainer's, else.
        is_dropped: the group was left out of the update.
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
    """Return the loss mask of a turn's tokens; one number if it is the same for all."""
    if is_dropped or credit.loss_weight == 0:
        return 0
    return [int(keep) for keep in credit.token_keep[:count]] if credit.token_keep else 1


def _shown(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{max(value, _LOWEST):.4g}") for value in values[:MOST_TOKENS]]
