"""Compressed blocks of episodes: a page holds tens of thousands of episodes and unpacks those that are opened.

The light half of each episode, which is enough for its row in the list, stays uncompressed. The heavy half, turns with
all their text, is JSON in gzip blocks as base64. Browsers can unpack them (``DecompressionStream``), also from a local
file.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence

BLOCK_CHARACTERS = 150_000
"""Characters of a block before compression, all of which are unpacked when one of its episodes is opened."""
_FIRST_RATIO = 0.25
"""Assumed compression ratio until the first block is compressed."""

LIGHT = ("task", "trial", "status", "success", "return", "seed", "hash", "player", "cells")
"""Fields of an episode for its row in the list."""

Packed = dict[str, object]


class Packer:
    """A packer of episodes into a limited number of bytes.

    Args:
        num_bytes: approximate size of all blocks and light halves together.
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
        """Bytes that are still free; the size of uncompressed data is estimated."""
        return self._room - self._open_size * self._ratio

    def takes(self, episodes: Sequence[Mapping[str, object]], keep: float = 0) -> list[Packed] | None:
        """Pack episodes if at least ``keep`` bytes stay free. Return their light halves, or None if they do not fit."""
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
        """Compress the open block."""
        if not self._open:
            return
        text = f"[{','.join(self._open)}]"
        # no time stamp, so that the same episodes give the same page
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
