"""``agentgym/ChessEndgame-v0``: mate a lone king with king and queen, or king and rook.

After LMRL-Gym's endgames ("LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models", Abdulhai
et al., 2023). python-chess (extra ``chess``) implements the rules. The defence and the oracle follow a table of
distances to mate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import chess
import numpy as np
from numpy.typing import NDArray

from agentgym.envs.games.solo_game import SoloGame
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import ToolError, UsageError
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.types import Message, Task

Defence = Literal["optimal", "random"]
PIECES: dict[Piece, int] = {"queen": chess.QUEEN, "rook": chess.ROOK}


class ChessEndgameEnv(SoloGame):
    """Mate a lone king with king and queen or rook; the reward is 1 for mate, 0 for a draw.

    Black captures an unprotected piece, and otherwise delays mate as long as possible. The seed draws among equally
    good moves.

    Args:
        pieces: pieces of the endgames: ``queen``, ``rook``.
        max_distance: most moves to mate with best play at the start (at most 16 with the rook, 10 with the queen).
        defence: ``optimal``, or ``random``.
        max_turns: turns after which an episode is truncated.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = ChessEndgameEnv(pieces=("rook",), max_distance=3)
        >>> observation, info = env.reset(seed=0)
        >>> while not env.step(env.oracle())[2]:
        ...     pass
        >>> env.board.is_checkmate()
        True
    """

    board = SinceReset[chess.Board]()
    """Board of the current episode."""
    _piece: Piece = "queen"

    def __init__(
        self,
        *,
        pieces: Sequence[Piece] = ("queen", "rook"),
        max_distance: int = 16,
        defence: Defence = "optimal",
        max_turns: int = 40,
        render_mode: str | None = None,
    ) -> None:
        if not pieces or any(piece not in PIECES for piece in pieces):
            raise UsageError(f"pieces are some of {', '.join(PIECES)}, got {pieces!r}")
        check_number("max_distance", max_distance, Range(at_least=1, at_most=16))
        if defence not in ("optimal", "random"):
            raise UsageError(f"defence is optimal or random, got {defence!r}")
        self._defence = defence
        knobs = {"pieces": list(pieces), "max_distance": max_distance}
        super().__init__(knobs, max_turns=max_turns, render_mode=render_mode)

    def start(self, task: Task) -> str:
        knobs = {**self._knobs, **task.data}
        pieces: Sequence[Piece] = knobs["pieces"]
        self._piece = pieces[int(self.np_random.integers(len(pieces)))]
        distances = self._table.white
        starts = np.flatnonzero((distances > 0) & (distances <= knobs["max_distance"]))
        wk, wp, bk = np.unravel_index(int(starts[int(self.np_random.integers(len(starts)))]), distances.shape)
        self.board = chess.Board(None)
        for square, kind, colour in ((wk, chess.KING, True), (wp, PIECES[self._piece], True), (bk, chess.KING, False)):
            self.board.set_piece_at(int(square), chess.Piece(kind, colour))
        return f"You are White. Mate the black king.\n{self._shown()}"

    @tool
    def move(self, move: str) -> str:
        """Move a white piece; Black answers.

        Args:
            move: In standard notation, such as Kd4 or Rh1, or from square to square, such as c3d4.
        """
        board = self.board
        board.push(self._read(move))
        if board.is_checkmate():
            self.finish(1.0)
            return f"Mate.\n{board}"
        if board.is_stalemate():
            self.finish(0.0)
            return f"Stalemate: a draw.\n{board}"
        answer = self._answer()
        said = board.san(answer)
        board.push(answer)
        if board.is_insufficient_material():
            self.finish(0.0)
            return f"Black plays {said} and takes your {self._piece}: a draw.\n{board}"
        return f"Black plays {said}.\n{self._shown()}"

    def _read(self, text: str) -> chess.Move:
        wanted = text.strip().rstrip("+#!?.")
        for parse in (self.board.parse_uci, self.board.parse_san):
            try:
                return parse(wanted)
            except ValueError:
                continue
        legal = ", ".join(sorted(map(self.board.san, self.board.legal_moves)))
        raise ToolError(f"{wanted[:20]!r} is no legal move; there are: {legal}", "illegal_move")

    def _answer(self) -> chess.Move:
        """Return Black's move: a capture, else a move that delays mate longest."""
        moves = sorted(self.board.legal_moves, key=chess.Move.uci)
        if self._defence == "optimal":
            worth = [64 if self.board.is_capture(move) else self._distance_after(move) for move in moves]
            moves = [move for move, value in zip(moves, worth, strict=True) if value == max(worth)]
        return moves[int(self.np_random.integers(len(moves)))]

    def _distance_after(self, move: chess.Move) -> int:
        """Return the moves to mate after a move of either side, or -1 if mate is no longer possible."""
        self.board.push(move)
        try:
            kings = (self.board.king(True), self.board.king(False))
            piece = next(iter(self.board.pieces(PIECES[self._piece], True)), None)
            if piece is None or None in kings:
                return -1
            table = self._table.white if self.board.turn else self._table.black
            return int(table[kings[0], piece, kings[1]])
        finally:
            self.board.pop()

    @property
    def _table(self) -> EndgameTable:
        return endgame_table(self._piece)

    def _shown(self) -> str:
        squares = ", ".join(
            f"{'white' if piece.color else 'black'} {chess.piece_name(piece.piece_type)} {chess.square_name(square)}"
            for square, piece in sorted(self.board.piece_map().items())
        )
        return f"{self.board}\n{squares}."

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        """Return a key of the pieces and the side to move, without move counters."""
        return str(self.board.epd())

    def dump_state(self) -> Any:
        return self.board.copy(stack=False), self._piece

    def load_state(self, state: Any) -> None:
        board, self._piece = state
        self.board = board.copy(stack=False)

    def oracle(self) -> Message:
        """Return a move on the shortest way to mate."""
        moves = sorted(self.board.legal_moves, key=chess.Move.uci)
        distances = {move: self._distance_after(move) for move in moves}
        best = min((move for move in moves if distances[move] >= 0), key=lambda move: distances[move], default=moves[0])
        return self.move_of("move", move=best.uci())

    def admissible_actions(self) -> tuple[str, ...]:
        return tuple(sorted(f"move: {move.uci()}" for move in self.board.legal_moves))


# ------------------------ distances to mate in all positions of king and queen, or king and rook, against a king
# Retrograde analysis: backwards from the mates, for all positions at once. Squares are numbered as in python-chess: a1
# is 0 and h8 is 63; tables are indexed by (white king, white piece, black king).

Piece = Literal["queen", "rook"]
Table = NDArray[np.int8]
Bools = NDArray[np.bool_]

STRAIGHT = ((0, 1), (1, 0), (0, -1), (-1, 0))
DIAGONAL = ((1, 1), (1, -1), (-1, -1), (-1, 1))


@dataclass(frozen=True, slots=True)
class EndgameTable:
    """Distances to mate with best play on both sides, ``[64, 64, 64]``; -1 if there is no forced mate or the position
    is illegal.
    """

    white: Table
    """White's moves until mate, with White to move."""
    black: Table
    """White's moves until mate, with Black to move; 0 is mate."""


@cache
def endgame_table(piece: Piece) -> EndgameTable:
    """Return the table of a piece, which is computed in about a second and cached.

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
    """The possible moves as boolean arrays over squares."""

    def __init__(self, piece: Piece) -> None:
        self.king = _king_steps()
        self.line, self.clear = _lines(STRAIGHT if piece == "rook" else STRAIGHT + DIAGONAL)
        squares = np.arange(64)
        wk, wp, bk = np.meshgrid(squares, squares, squares, indexing="ij")
        self.is_position: Bools = (wk != wp) & (wp != bk) & (wk != bk) & ~self.king[wk, bk]
        # attacked squares; the black king does not block, since it is the king that moves away
        self.attacks: Bools = self.line[None] & self.clear.transpose(2, 0, 1)
        self.is_white_to_move: Bools = self.is_position & ~self.attacks

    def mates(self) -> Bools:
        """Return the positions with Black to move in which Black is mated."""
        return self.attacks & self.is_position & ~self._has_move()

    def can_reach(self, lost: Bools) -> Bools:
        """Return the positions in which White can move into one of the given positions."""
        reached = np.zeros_like(lost)
        for start in range(64):
            for end in np.flatnonzero(self.king[start]):
                reached[start] |= lost[end]
            for end in np.flatnonzero(self.line[start]):
                free = self.clear[start, end]
                reached[:, start, :] |= free[:, None] & free[None, :] & lost[:, end, :]
        return reached

    def only_reach(self, won: Bools) -> Bools:
        """Return the positions in which every move of Black leads into the given ones, including mates but not
        stalemates.
        """
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
        """Return where the black king may move to a square, ``[white king, white piece]``. Capturing the piece is a
        draw.
        """
        legal: Bools = ~self.king[:, square, None] & ~self.attacks[:, :, square]
        legal[square] = False
        return legal


def _king_steps() -> Bools:
    files, ranks = np.arange(64) % 8, np.arange(64) // 8
    near = np.maximum(abs(files[:, None] - files), abs(ranks[:, None] - ranks))
    return np.asarray(near == 1, dtype=np.bool_)


def _lines(directions: tuple[tuple[int, int], ...]) -> tuple[Bools, Bools]:
    """Return ``line[a, b]``: b is on a line from a; ``clear[a, b, c]``: c is neither between a and b nor b."""
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
