"""Episodes in compressed blocks: a page holds tens of thousands, and unpacks those that are looked at.

Of each episode a light half stays outside, enough for its row in the list; the rest, turns with all their text, is JSON
in blocks of gzip, as base64. Browsers unpack them by themselves (``DecompressionStream``), also from a file.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence

BLOCK_CHARACTERS = 150_000
"""Of a block before it is compressed: what is read when one of its episodes is opened."""
_FIRST_RATIO = 0.25
"""Share that compression is taken to leave, until the first block says."""

LIGHT = ("task", "status", "success", "return", "seed", "hash", "player", "cells")
"""Fields of an episode that its row in the list needs."""

Packed = dict[str, object]


class Packer:
    """Takes episodes until a number of bytes is spent.

    Args:
        num_bytes: of all blocks and light halves together, about.
    """

    def __init__(self, num_bytes: int) -> None:
        self.blocks: list[str] = []
        self._room = float(num_bytes)
        self._open: list[str] = []
        self._open_size = 0
        self._ratio = _FIRST_RATIO
        self.is_spent = False

    @property
    def left(self) -> float:
        """Bytes that are still free; what is not compressed yet is estimated."""
        return self._room - self._open_size * self._ratio

    def takes(self, episodes: Sequence[Mapping[str, object]], keep: float = 0) -> list[Packed] | None:
        """Pack some episodes if that leaves at least ``keep`` bytes, and return their light halves; else None."""
        light = [{name: one[name] for name in LIGHT if name in one} for one in episodes]
        heavy = [json.dumps({name: value for name, value in one.items() if name not in LIGHT}) for one in episodes]
        size = len(json.dumps(light)) + sum(map(len, heavy)) * self._ratio
        if size > self.left - keep:
            self.is_spent = self.is_spent or not keep
            return None
        self._room -= len(json.dumps(light))
        for one, text in zip(light, heavy, strict=True):
            one["at"] = [len(self.blocks), len(self._open)]
            self._open.append(text)
            self._open_size += len(text)
            if self._open_size >= BLOCK_CHARACTERS:
                self.close()
        return light

    def close(self) -> None:
        """Compress what is open."""
        if not self._open:
            return
        text = f"[{','.join(self._open)}]"
        # no time of day in the file: the same episodes give the same page
        block = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        self.blocks.append(block)
        self._room -= len(block)
        self._ratio = len(block) / len(text)
        self._open, self._open_size = [], 0


def unpacked(block: str) -> list[Packed]:
    """Return the heavy halves of a block.

    Example:
        >>> packer = Packer(10_000)
        >>> packer.takes([{"task": "t", "turns": [1, 2]}])
        [{'task': 't', 'at': [0, 0]}]
        >>> packer.close()
        >>> unpacked(packer.blocks[0])
        [{'turns': [1, 2]}]
    """
    found: list[Packed] = json.loads(gzip.decompress(base64.b64decode(block)))
    return found
