"""TextArena's own games, played bare and through the adapter; skipped where it is not installed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from agentgym.check import check_env
from agentgym.envs.adapters.textarena import TextArenaEnv
from agentgym.envs.adapters.textarena_worker import random_opponent, scripted_opponent
from agentgym.errors import EnvError, ResetNeededError, UsageError

arena = pytest.importorskip("textarena", reason="needs the package textarena (the extra textarena)")


@pytest.fixture
def keeps_global_generator() -> Iterator[None]:
    """TextArena seeds Python's global generator; here it plays in this process."""
    state = random.getstate()
    yield
    random.setstate(state)


def outcome_of(env: TextArenaEnv, moves: list[str], seed: int = 3) -> tuple[float, bool, bool]:
    env.reset(seed=seed)
    info: dict[str, Any] = {}
    total, terminated = 0.0, False
    for move in moves:
        _, reward, terminated, _, info = env.step(move)
        total += reward
    return total, terminated, bool(info.get("success"))


def test_a_game_of_two_ends_as_the_bare_game(keeps_global_generator: None) -> None:
    games = {"won": (["[0]", "[1]", "[2]"], ["[3]", "[4]"]), "lost": (["[0]", "[1]", "[8]"], ["[3]", "[4]", "[5]"])}
    for name, (ours, theirs) in games.items():
        bare = arena.make("TicTacToe-v0-raw")
        bare.reset(num_players=2, seed=3)
        moves = [move for pair in zip(ours, [*theirs, ""], strict=False) for move in pair if move]
        for move in moves:
            bare.get_observation()
            is_over, _ = bare.step(move)
        rewards, _ = bare.close()
        env = TextArenaEnv(interface="text", opponent=theirs)
        assert is_over and outcome_of(env, ours) == (float(rewards[0]), True, name == "won")
        env.close()


def test_the_second_seat_sees_the_first_move() -> None:
    env = TextArenaEnv(interface="text", opponent=["[4]", "[0]", "[8]"], seat=1)
    said = env.reset(seed=1)[0][0].text
    assert "You are Player 1" in said and "Player 0: [4]" in said
    assert env.admissible_actions() == tuple(f"[{number}]" for number in range(9) if number != 4)
    assert env.step("I take the corner: [2]")[4]["is_valid"]
    _, reward, terminated, _, info = env.step("[3]")
    assert (reward, terminated, info["success"]) == (-1.0, True, False)
    env.close()


def test_a_game_of_one_is_won_by_its_answer() -> None:
    env = TextArenaEnv(game="GuessTheNumber-v0-raw", interface="text")
    env.reset(seed=3)
    low, high, terminated = 1, 20, False
    while not terminated:
        guess = (low + high) // 2
        observation, reward, terminated, _, info = env.step(f"[{guess}]")
        if "higher" in observation[0].text:
            low = guess + 1
        else:
            high = guess - 1
    assert (reward, info["success"]) == (1.0, True)
    env.close()


def test_an_impossible_move_is_marked_and_a_second_loses() -> None:
    env = TextArenaEnv(interface="text")
    env.reset(seed=3)
    key = env.state_key()
    _, reward, terminated, _, info = env.step("[99]")
    assert (reward, terminated, info["is_valid"]) == (0.0, False, False) and env.state_key() == key
    _, reward, terminated, _, info = env.step("[99]")
    assert reward < 0 and terminated and not info["success"]
    env.close()


def test_opponents() -> None:
    game = arena.make("TicTacToe-v0-raw")
    game.reset(num_players=2, seed=3)
    game.step("[4]")
    one, other = random_opponent(5), random_opponent(5)
    chosen = [one(game, ["[4]", "[row]"]) for _ in range(40)]
    assert chosen == [other(game, ["[4]", "[row]"]) for _ in range(40)]
    assert set(chosen) == {f"[{number}]" for number in range(9) if number != 4}
    scripted = scripted_opponent(["[4]", "[1]", "[2]"])
    assert [scripted(game, []) for _ in range(3)] == ["[1]", "[2]", "[1]"]


@pytest.mark.parametrize("game", ["Nim-v0-raw", "ConnectFour-v0-raw", "TicTacToe-v0-raw", "KuhnPoker-v0-raw"])
def test_no_game_ends_by_a_fault_of_a_random_player(game: str) -> None:
    env = TextArenaEnv(game=game, interface="text")
    rng = random.Random(0)
    for seed in range(3):
        env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            moves = env.admissible_actions()
            assert moves
            observation, _, terminated, truncated, info = env.step(rng.choice(moves))
            assert info["is_valid"] and "invalid" not in observation[0].text.lower()
    env.close()


def test_one_legal_move_does_not_win() -> None:
    env = TextArenaEnv(game="Breakthrough-v0-raw", interface="text")
    env.reset(seed=0)
    _, reward, terminated, _, _ = env.step("[a2a3]")
    assert (reward, terminated) == (0.0, False)
    env.close()


def test_an_opponent_without_a_legal_move_voids_the_episode() -> None:
    env = TextArenaEnv(interface="text", opponent=["[99]", "nonsense"])
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"the opponent knows no legal move.*opponent=\[MOVE"):
        env.step("[4]")
    env.close()


def test_a_snapshot_is_replayed_and_seeds_decide_the_opponent() -> None:
    env = TextArenaEnv(interface="text")
    env.reset(options={"task": 0})
    env.step("[4]")
    snapshot = env.snapshot()
    env.step(env.admissible_actions()[0])
    env.restore(snapshot)
    assert env.state_key() == snapshot.state_key
    keys = set()
    for number in range(6):
        env.reset(options={"task": number})
        env.step("[4]")
        keys.add(env.state_key())
    assert len(keys) > 1
    env.close()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="seat"):
        TextArenaEnv(seat=2)
    with pytest.raises(UsageError, match="opponent"):
        TextArenaEnv(opponent="grandmaster")
    env = TextArenaEnv(game="NoSuchGame-v0")
    with pytest.raises(UsageError, match="cannot play 'NoSuchGame-v0'"):
        env.reset(seed=0)
    with pytest.raises(ResetNeededError):
        env.state_key()
    env.close()


def test_the_contract_is_kept() -> None:
    report = check_env(lambda: TextArenaEnv(interface="text"), num_episodes=3)
    assert report.passed, report.failures
