"""How many moves to mate, in every position of king and queen, or king and rook, against a king.

Retrograde analysis: from the mates backwards, all positions at a time. Squares are numbered as python-chess does, a1 is
0 and h8 is 63; tables are indexed by (white king, white piece, black king).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Piece = Literal["queen", "rook"]
Table = NDArray[np.int8]
Bools = NDArray[np.bool_]

STRAIGHT = ((0, 1), (1, 0), (0, -1), (-1, 0))
DIAGONAL = ((1, 1), (1, -1), (-1, -1), (-1, 1))


@dataclass(frozen=True, slots=True)
class EndgameTable:
    """Distances to mate with best play on both sides, ``[64, 64, 64]``; -1 where there is none, or no such position."""

    white: Table
    """White to move: own moves until black is mated."""
    black: Table
    """Black to move: white's moves until black is mated; 0 is mate."""


@cache
def endgame_table(piece: Piece) -> EndgameTable:
    """The table of a piece, made in about a second and kept.

    Example:
        >>> int(endgame_table("rook").white.max()), int(endgame_table("queen").white.max())
        (16, 10)
    """
    geometry = _Geometry(piece)
    shape = (64, 64, 64)
    white, black = np.full(shape, -1, dtype=np.int8), np.full(shape, -1, dtype=np.int8)
    lost = geometry.mates()
    black[lost] = 0
    for distance in range(1, 64):
        won = geometry.can_reach(lost) & geometry.is_white_to_move
        new = won & (white < 0)
        white[new] = distance
        lost = geometry.only_reach(white >= 0)
        if not (found := lost & (black < 0)).any():
            break
        black[found] = distance
    return EndgameTable(white, black)


class _Geometry:
    """Which moves there are."""

    def __init__(self, piece: Piece) -> None:
        self.king = _king_steps()
        self.line, self.clear = _lines(STRAIGHT if piece == "rook" else STRAIGHT + DIAGONAL)
        squares = np.arange(64)
        wk, wp, bk = np.meshgrid(squares, squares, squares, indexing="ij")
        self.is_position: Bools = (wk != wp) & (wp != bk) & (wk != bk) & ~self.king[wk, bk]
        # what the piece attacks; the black king hides nothing from it, since it is the one that moves away
        self.attacks: Bools = self.line[None] & self.clear.transpose(2, 0, 1)
        self.is_white_to_move: Bools = self.is_position & ~self.attacks

    def mates(self) -> Bools:
        """Black to move, attacked, and without a legal move."""
        return self.attacks & self.is_position & ~self._has_move()

    def can_reach(self, lost: Bools) -> Bools:
        """White can move into one of these positions."""
        reached = np.zeros_like(lost)
        for start in range(64):
            for end in np.flatnonzero(self.king[start]):
                reached[start] |= lost[end]
            for end in np.flatnonzero(self.line[start]):
                free = self.clear[start, end]
                reached[:, start, :] |= free[:, None] & free[None, :] & lost[:, end, :]
        return reached

    def only_reach(self, won: Bools) -> Bools:
        """Black to move, and every move leads into one of these positions; mates are among them, stalemates are not."""
        all_lost: Bools = self.is_position & (self.attacks | self._has_move())
        for start in range(64):
            for end in np.flatnonzero(self.king[start]):
                all_lost[:, :, start] &= ~self._is_legal(int(end)) | won[:, :, end]
        return all_lost

    def _has_move(self) -> Bools:
        found = np.zeros((64, 64, 64), dtype=np.bool_)
        for start in range(64):
            for end in np.flatnonzero(self.king[start]):
                found[:, :, start] |= self._is_legal(int(end))
        return found

    def _is_legal(self, square: int) -> Bools:
        """The black king may go to a square, ``[white king, white piece]``; to take the piece is to draw."""
        legal: Bools = ~self.king[:, square, None] & ~self.attacks[:, :, square]
        legal[square] = False
        return legal


def _king_steps() -> Bools:
    files, ranks = np.arange(64) % 8, np.arange(64) // 8
    near = np.maximum(abs(files[:, None] - files), abs(ranks[:, None] - ranks))
    return np.asarray(near == 1, dtype=np.bool_)


def _lines(directions: tuple[tuple[int, int], ...]) -> tuple[Bools, Bools]:
    """``line[a, b]``: b is in a line from a; ``clear[a, b, c]``: c is neither between a and b nor b itself."""
    line, clear = np.zeros((64, 64), dtype=np.bool_), np.ones((64, 64, 64), dtype=np.bool_)
    for start in range(64):
        for d_file, d_rank in directions:
            file, rank = start % 8 + d_file, start // 8 + d_rank
            passed: list[int] = []
            while 0 <= file < 8 and 0 <= rank < 8:
                passed.append(8 * rank + file)
                line[start, passed[-1]] = True
                clear[start, passed[-1], passed] = False
                file, rank = file + d_file, rank + d_rank
    return line, clear
