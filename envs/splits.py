"""Splits by content: a task's split depends only on its content, so that no seed can move it to another split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentgym.errors import require_known

SPLIT_SHARES: Final[Mapping[str, tuple[int, int]]] = {"train": (0, 154), "valid": (154, 205), "test": (205, 256)}
"""Half-open range of a digest's first byte for each split: 60, 20 and 20 per cent."""


def is_byte_in_split(byte: int, split: str) -> bool:
    """Return True if content belongs to a split, given the first byte of its digest.

    Raises:
        UnknownNameError: there is no such split.

    Example:
        >>> [split for split in SPLIT_SHARES if is_byte_in_split(200, split)]
        ['valid']
    """
    require_known("split", split, SPLIT_SHARES)
    low, high = SPLIT_SHARES[split]
    return low <= byte < high
