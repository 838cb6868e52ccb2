"""Bytes of single tokens, which text cannot hold if a token ends within a character of UTF-8."""

from __future__ import annotations

import re
from typing import Any

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
_SHOWN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that GPT-2's alphabet writes as the character of the same number; the others follow from 256 on."""
_HIDDEN = tuple(byte for byte in range(0x100) if byte not in _SHOWN)
_BYTE_OF = {chr(byte): byte for byte in _SHOWN} | {chr(0x100 + at): byte for at, byte in enumerate(_HIDDEN)}


class TokenBytes:
    """The bytes of a tokenizer's tokens.

    Args:
        tokenizer: a Hugging Face tokenizer. Bytes within a character are known for byte-level tokens and for
            SentencePiece tokens with byte fallback, which the decoder of its ``tokenizer.json`` tells apart.
    """

    def __init__(self, tokenizer: Any) -> None:
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        form = decoder.__getstate__().decode() if decoder is not None else ""
        self._tokenizer = tokenizer
        self._read = _byte_level if '"ByteLevel"' in form else _sentencepiece if "▁" in form else None

    def of(self, token_id: int) -> bytes | None:
        """Return the bytes that a token stands for, or None if they are unknown."""
        if self._read is not None:
            return self._read(str(self._tokenizer.convert_ids_to_tokens(token_id) or ""))
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return None if "\ufffd" in text else text.encode()


def _byte_level(token: str) -> bytes:
    """Return the bytes of a byte-level token: those that it spells in GPT-2's alphabet, or else its text.

    Example:
        >>> _byte_level("Ġé"), _byte_level("ðŁ"), _byte_level("<｜")
        (b' \\xe9', b'\\xf0\\x9f', b'<\\xef\\xbd\\x9c')
    """
    return bytes(_BYTE_OF[character] for character in token) if _BYTE_OF.keys() >= set(token) else token.encode()


def _sentencepiece(token: str) -> bytes:
    """Return the bytes of a SentencePiece token, which writes a space as ``▁`` and a single byte by its number.

    Example:
        >>> _sentencepiece("▁é"), _sentencepiece("<0xF0>")
        (b' \\xc3\\xa9', b'\\xf0')
    """
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
