"""Token ids as text, piece by piece, for colouring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.errors import CorruptDataError

_LONGEST_CHARACTER = 4  # tokens that can share one character of UTF-8


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
