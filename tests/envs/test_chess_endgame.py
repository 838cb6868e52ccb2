"""The endgames: the table against python-chess's rules, and what the kit says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentgym.check.conformance import check_env
from agentgym.check.episodes import play
from agentgym.check.policies import oracle_action
from agentgym.envs.games.chess_endgame import Piece, Table, endgame_table

chess: Any = pytest.importorskip("chess", reason="needs the extra chess")


def position(piece: Piece, wk: int, wp: int, bk: int, *, white: bool) -> Any:
    board = chess.Board(None)
    kind = chess.QUEEN if piece == "queen" else chess.ROOK
    for square, of_kind, colour in ((wk, chess.KING, True), (wp, kind, True), (bk, chess.KING, False)):
        board.set_piece_at(square, chess.Piece(of_kind, colour))
    board.turn = white
    return board


def squares(board: Any) -> tuple[int, int, int] | None:
    """Indices into the table, None once the piece is taken."""
    pieces = [square for square, piece in board.piece_map().items() if piece.piece_type not in (chess.KING,)]
    return (board.king(True), pieces[0], board.king(False)) if pieces else None


def reached(board: Any, table: Table) -> list[int]:
    found = []
    for move in board.legal_moves:
        board.push(move)
        at = squares(board)
        found.append(-1 if at is None else int(table[at]))
        board.pop()
    return found


@pytest.mark.parametrize(("piece", "longest"), [("queen", 10), ("rook", 16)])
def test_the_table_keeps_the_rules(piece: Piece, longest: int) -> None:
    table = endgame_table(piece)
    assert table.white.max() == longest, "known of these endgames"
    rng = np.random.default_rng(0)
    num_seen = 0
    while num_seen < 400:
        wk, wp, bk = (int(at) for at in rng.integers(64, size=3))
        for white, mine, other in ((True, table.white, table.black), (False, table.black, table.white)):
            board = position(piece, wk, wp, bk, white=white)
            if len({wk, wp, bk}) < 3 or not board.is_valid():
                assert mine[wk, wp, bk] == -1
                continue
            num_seen += 1
            after, distance = reached(board, other), int(mine[wk, wp, bk])
            if white:
                won = [value for value in after if value >= 0]
                assert distance == (min(won) + 1 if won else -1)
            elif not after:
                assert distance == (0 if board.is_check() else -1)
            else:
                assert distance == (-1 if -1 in after else max(after))


def test_the_kit_finds_nothing_wrong() -> None:
    report = check_env("agentgym/ChessEndgame-v0", num_episodes=2)
    assert [f"{check.name}: {check.detail}" for check in report.failures] == []


def test_best_play_mates_in_as_many_moves_as_the_table_says() -> None:
    from agentgym.envs.games.chess_endgame import ChessEndgameEnv

    env = ChessEndgameEnv(pieces=("rook",))
    for task in env.tasks("valid")[:8]:
        env.reset(options={"task": task})
        at = squares(env.board)
        assert at is not None
        distance = int(endgame_table("rook").white[at])
        episode = play(env, oracle_action, task, np.random.default_rng(0))
        assert (episode.is_success, len(episode.steps)) == (True, distance)


def test_moves_are_read_in_both_notations_and_refused_with_what_is_legal() -> None:
    from agentgym.envs.games.chess_endgame import ChessEndgameEnv

    env = ChessEndgameEnv()
    env.reset(seed=0)
    move = next(iter(env.board.legal_moves))
    for text in (move.uci(), env.board.san(move)):
        env.reset(seed=0)
        assert env.step(f"move: {text}")[4]["is_valid"]
    env.reset(seed=0)
    observation, reward, _, _, info = env.step("move: e9e4")
    assert not info["is_valid"] and reward == 0 and "no legal move; there are: K" in observation[0].text


def test_black_takes_what_is_not_protected() -> None:
    from agentgym.envs.games.chess_endgame import ChessEndgameEnv

    env = ChessEndgameEnv()
    env.reset(seed=0)
    env._piece = "queen"
    env.board = position("queen", chess.A1, chess.E1, chess.E8, white=True)
    observation, reward, terminated, _, info = env.step("move: Qe7")
    assert terminated and reward == 0 and not info["success"]
    assert "takes your queen" in observation[0].text
