"""The games: what the kit says of each, and the rules that can be checked by hand or by trying everything."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from agentgym import make
from agentgym.check.conformance import check_env
from agentgym.check.episodes import play
from agentgym.check.policies import oracle_action, random_action
from agentgym.env.env import Env
from agentgym.envs.games.car_dealer import CarDealerEnv, Dealer, best_price
from agentgym.envs.games.guess_city import GuessCityEnv
from agentgym.envs.games.guess_number import GuessNumberEnv
from agentgym.envs.games.maze import MazeEnv, make_plan, moved, way
from agentgym.envs.games.negotiation import NegotiationEnv, NegotiationState, winning_trades
from agentgym.envs.games.tictactoe import TicTacToeEnv, TicTacToeState, value
from agentgym.envs.games.try_again import TryAgainEnv, normalised
from agentgym.envs.games.twenty_questions import TwentyQuestionsEnv
from agentgym.envs.games.wordle import WORDS, WordleEnv, feedback, words_of
from agentgym.errors import CorruptDataError, UsageError
from agentgym.types import RewardPart, RewardRole

IDS = (
    *("GuessNumber", "TwentyQuestions", "GuessCity", "CarDealer", "Maze", "Wordle", "TryAgain"),
    *("TicTacToe", "KuhnPoker", "Negotiation"),
)


@pytest.mark.parametrize("name", IDS)
def test_the_kit_finds_nothing_wrong(name: str) -> None:
    report = check_env(f"agentgym/{name}-v0", num_episodes=3)
    assert [f"{check.name}: {check.detail}" for check in report.failures] == []


@pytest.mark.parametrize("name", [name for name in IDS if name != "KuhnPoker"])
def test_the_oracle_wins_on_many_seeds(name: str) -> None:
    env = make(f"agentgym/{name}-v0")
    for task in env.tasks("valid")[:60]:
        assert play(env, oracle_action, task, np.random.default_rng(0)).is_success, task


def total(env: Env, *actions: str, seed: int = 0, task: int | None = None) -> float:
    env.reset(seed=seed, options={} if task is None else {"task": task})
    return sum(env.step(action)[1] for action in actions)


# ------------------------------------------------------------------------------------------------- guessing and words


def test_a_number_is_found_by_halving_what_is_left() -> None:
    env = GuessNumberEnv(largest=100)
    assert env.max_turns == 7
    for seed in range(30):
        env.reset(seed=seed)
        low, high, text = 1, 100, ""
        while text != "Right.":
            middle = (low + high) // 2
            replies, reward, _, is_cut, _ = env.step(f"guess: {middle}")
            text = replies[0].text
            assert text == "Right." or not is_cut
            low, high = (middle + 1, high) if text == "Too low." else (low, middle - 1)
        assert reward == 1.0


def test_a_number_without_hints() -> None:
    env = GuessNumberEnv(largest=4, hints=False)
    env.reset(seed=0)
    texts = [env.step(f"guess: {number}")[0][0].text for number in (3, 5, 3)]
    assert texts == ["Wrong.", "Error: The number is between 1 and 4.", "Wrong."]
    key = env.state_key()
    env.reset(seed=0)
    env.step("guess: 3")
    assert env.state_key() == key  # a guess that is made again teaches nothing
    assert env.step("guess: 4")[1:3] == (1.0, True)


def test_questions_halve_what_is_left() -> None:
    env = GuessCityEnv(num_cities=32)
    turns = [len(play(env, oracle_action, task, np.random.default_rng(0)).steps) for task in env.tasks("test")[:30]]
    assert max(turns) <= 6, "five halvings of 32, and the name"


def test_answers_come_from_the_table() -> None:
    env = TwentyQuestionsEnv(num_objects=3, num_attributes=8)
    said = env.reset(seed=1)[0][0].text
    rows = dict(line.split(": ") for line in said.split("\n")[1:4])
    for attribute, values in (("material", ("wood", "metal", "glass", "clay")), ("weight", ("light", "heavy"))):
        answers = {v: env.step(f"ask: {attribute}; {v}")[0][0].text for v in values}
        assert Counter(answers.values())["Yes."] == 1
        (true,) = (v for v in values if answers[v] == "Yes.")
        rows = {name: row for name, row in rows.items() if true in row.split(", ")}
    assert any(env.step(f"guess: {name}")[4].get("success") for name in rows)


def test_unknown_names_are_refused_with_what_there_is() -> None:
    env = TwentyQuestionsEnv()
    env.reset(seed=0)
    observation, reward, _, _, info = env.step("guess: unicorn")
    assert "there is no 'unicorn'" in observation[0].text and not info["is_valid"] and reward == 0
    assert "no attribute 'taste'" in env.step("ask: taste; sweet")[0][0].text
    assert env.step("guess: unicorn")[0][0].text == observation[0].text


def test_every_turn_costs() -> None:
    env = TwentyQuestionsEnv(question_cost=0.1)
    env.reset(seed=0)
    parts = env.step("ask: size; small")[4]["reward_parts"] or env.step("ask: material; wood")[4]["reward_parts"]
    assert parts == (RewardPart("question", -0.1, RewardRole.COST),)


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("apple", "apple", "+++++"),
        ("speed", "abide", "--?-?"),
        ("speed", "erase", "?-??-"),
        ("speed", "steal", "+-+--"),
        ("speed", "crepe", "-?+?-"),
    ],
)
def test_wordle_marks_a_letter_as_often_as_it_is_there(guess: str, secret: str, marks: str) -> None:
    assert feedback(guess, secret) == marks


def test_wordle_splits_share_no_secret() -> None:
    splits = [set(words_of(split)) for split in ("train", "valid", "test")]
    assert sum(map(len, splits)) == len(WORDS) == len(set(WORDS)) == len(set.union(*splits))
    assert {len(word) for word in WORDS} == {5}


def test_wordle_ends_after_its_guesses() -> None:
    env = WordleEnv(max_guesses=2)
    env.reset(seed=0, options={"split": "test"})
    assert not env.step("guess: zzzzz")[2], "no word, no guess"
    wrong = [word for word in words_of("train")][:2]
    assert not env.step(f"guess: {wrong[0]}")[2]
    observation, reward, terminated, _, info = env.step(f"guess: {wrong[1]}")
    assert terminated and not info["success"] and reward == 0 and "It was" in observation[0].text


# ------------------------------------------------------------------------------------------------------- maze, dealer


def test_a_maze_without_loops_is_a_tree_and_its_ways_are_shortest() -> None:
    for seed in range(20):
        plan = make_plan(np.random.default_rng(seed), 5, 0.0)
        assert len(plan.passages) == 2 * 24
        at, steps = plan.start, way(plan, plan.start)
        for direction in steps:
            assert direction in plan.exits(at)
            at = moved(at, direction)
        assert at == plan.goal
        assert len(make_plan(np.random.default_rng(seed), 5, 1.0).passages) == 2 * 40


def test_a_wall_stops() -> None:
    env = MazeEnv()
    env.reset(seed=0)
    blocked = next(d for d in ("north", "east", "south", "west") if f"move: {d}" not in env.admissible_actions())
    before = env.state_key()
    _, reward, _, _, info = env.step(f"move: {blocked}")
    assert env.state_key() == before and not info["is_valid"] and reward == -0.01


@cache
def least_price(dealer: Dealer) -> int:
    """The least that can be paid, by trying every offer."""
    best = dealer.asked
    for price in range(dealer.asked + 1):
        if price >= dealer.next_asked:
            return min(best, price)
        after = dealer.answered(price)
        if after.patience > 0:
            best = min(best, least_price(after))
    return best


@pytest.mark.parametrize("concession", [0.25, 0.5, 0.6])
@pytest.mark.parametrize("insult", [0.4, 0.6])
def test_nobody_buys_cheaper_than_the_oracle(concession: float, insult: float) -> None:
    for reserve, patience in product((20, 25, 30), (1, 2, 3, 5)):
        dealer = Dealer(asked=40, reserve=reserve, concession=concession, insult=insult, patience=patience)
        assert best_price(dealer) == least_price(dealer)


def test_the_dealer_pays_out_the_surplus() -> None:
    env = CarDealerEnv()
    env.reset(seed=0)
    dealer, worth = env.dealer, env._worth
    assert dealer.asked > worth
    assert total(env, "accept") == pytest.approx((worth - dealer.asked) / (worth - dealer.reserve))
    assert total(env, "leave") == 0
    assert total(env, f"offer: {dealer.next_asked - 1}") == 0, "not taken, and not over"
    taken = (worth - dealer.next_asked) / (worth - dealer.reserve)
    assert total(env, f"offer: {dealer.next_asked}") == pytest.approx(taken)
    assert "no more time" in play_out(env, "offer: 0")


def play_out(env: Env, action: str) -> str:
    env.reset(seed=0)
    while True:
        observation, _, terminated, _, _ = env.step(action)
        if terminated:
            return observation[0].text


# ------------------------------------------------------------------------------------------------------- two players


def test_tictactoe_is_a_draw_and_perfect_play_never_loses() -> None:
    assert value(TicTacToeState()) == 0
    env = TicTacToeEnv(opponent="optimal")
    for task in env.tasks("test")[:40]:
        assert sum(step.reward for step in play(env, random_action, task, np.random.default_rng(0)).steps) <= 0
        assert sum(step.reward for step in play(env, oracle_action, task, np.random.default_rng(0)).steps) == 0


def test_starting_positions_are_not_lost() -> None:
    env = TicTacToeEnv(opponent="self", num_random_moves=4)
    boards = set()
    for task in env.tasks("test")[:40]:
        env.reset(options={"task": task})
        assert isinstance(env.state, TicTacToeState)
        assert value(env.state) == 0 and env.state.board.count(" ") == 5
        boards.add(env.state.board)
    assert len(boards) > 10


def test_moves_are_read_from_the_last_line() -> None:
    env = TicTacToeEnv(opponent="self")
    env.reset(seed=0)
    assert [env.move_in(text) for text in ("5", "I take the middle.\n[5]\n", "5 or 6", "0", "")] == [
        *("5", "5"),
        *(None, None, None),
    ]


def test_a_trade_moves_goods_and_worth() -> None:
    state = NegotiationState(values=((5, 10, 15), (6, 8, 20)), holdings=((3, 3, 3), (2, 2, 2)), num_left=4)
    traded = state.after("offer 2 wood for 1 ore").after("accept")
    assert traded.holdings == ((3, 1, 4), (2, 4, 1))
    assert traded.gains == (15 - 20, 16 - 20)
    over = traded.after("pass").after("pass")
    assert not over.actions() and over.returns() == (-1.0, 1.0)
    assert "accept" not in state.actions() and "offer 3 ore for 3 wood" not in state.actions()
    declined = state.after("offer 2 wood for 1 ore").after("pass")
    assert declined.offer is None and declined.holdings == state.holdings


def test_every_deal_can_be_won_by_both() -> None:
    env = NegotiationEnv(opponent="self")
    for task in env.tasks("valid")[:30]:
        env.reset(options={"task": task})
        assert isinstance(env.state, NegotiationState)
        for player in (0, 1):
            best = winning_trades(env.state, player)[0]
            assert best.gain(env.state.values[player]) > -best.gain(env.state.values[1 - player]) > 0


@pytest.mark.parametrize("name", ["TicTacToe", "KuhnPoker", "Negotiation"])
def test_results_sum_to_nothing(name: str) -> None:
    env = make(f"agentgym/{name}-v0", opponent="self")
    for task in env.tasks("valid")[:20]:
        play(env, random_action, task, np.random.default_rng(1))
        assert sum(env.returns()) == 0  # type: ignore[attr-defined]


def test_wrong_settings_are_named() -> None:
    with pytest.raises(UsageError, match="unknown opponent 'optimum'; did you mean 'optimal'"):
        TicTacToeEnv(opponent="optimum")
    with pytest.raises(UsageError, match="seat is a player from 0 to 1"):
        TicTacToeEnv(seat=2)
    for name, knob in (
        ("GuessNumber", "largest"),
        ("TwentyQuestions", "num_objects"),
        ("GuessCity", "num_cities"),
        ("Maze", "size"),
    ):
        with pytest.raises(UsageError, match=f"{knob} must be between"):
            make(f"agentgym/{name}-v0", **{knob: 1})


# ---------------------------------------------------------------------------------------------------------- try again


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (("right",), 1.0),
        (("1", "right"), 0.5),
        (("1", "1", "1", "right"), 0.125 - 0.5 * (1 - 2 / 4)),
        (("1", "2", "3", "4"), 0.0),
        (("", "right"), 1.0 - 0.1),
        (("", "1", "1", "right"), 0.25 - 0.5 * (1 - 2 / 3) - 0.1),
        (("", "", "", ""), -0.4),
    ],
)
def test_try_again_pays_as_the_shaper_ufo_does(answers: tuple[str, ...], reward: float) -> None:
    env = TryAgainEnv(max_attempts=4)
    env.reset(seed=0)
    right = env.question[1][0]
    steps = [env.step(right if answer == "right" else answer) for answer in answers]
    assert [step[0][0].text for step in steps[:-1]] == ["Try again."] * (len(answers) - 1)
    assert sum(step[1] for step in steps) == pytest.approx(reward)
    assert [step[2] for step in steps] == [False] * (len(answers) - 1) + [True]
    assert steps[-1][4]["success"] is ("right" in answers)


@pytest.mark.parametrize(
    ("answers", "rewards"),
    [(("right", "1"), [1, 0]), (("1", "right"), [0, 1]), (("right", "right"), [1, 1]), (("", "right"), [-0.1, 1])],
)
def test_try_again_with_revise_pays_every_attempt_and_the_last_decides(
    answers: tuple[str, ...], rewards: list[float]
) -> None:
    env = TryAgainEnv(max_attempts=2, revise=True, says="Look again.")
    env.reset(seed=0)
    right = env.question[1][0]
    steps = [env.step(right if answer == "right" else answer) for answer in answers]
    assert [step[1] for step in steps] == pytest.approx(rewards)
    assert [step[0][0].text for step in steps] == ["Look again.", "No attempts are left."], "it tells neither"
    assert steps[-1][2] and steps[-1][4]["success"] is (answers[-1] == "right")
    roles = [(part.name, part.role) for step in steps for part in step[4]["reward_parts"] if part.value > 0]
    assert set(roles) <= {("attempt", RewardRole.PROCESS), ("outcome", RewardRole.OUTCOME)}


def test_try_again_on_questions_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"Who is number {n}?", "answers": [f"The {n}th man", str(n)]} for n in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    env = TryAgainEnv(data=path)
    assert [len(env.tasks(split)) for split in ("train", "valid", "test")] == [16, 2, 2]
    task = env.tasks("test")[0]
    assert task.answers == ("The 18th man", "18")
    env.reset(options={"task": task})
    assert env.step("It is\nAnswer: 18th man.")[1] == 1.0
    path.write_text('{"question": "no answer"}', encoding="utf-8")
    with pytest.raises(CorruptDataError, match="line 1: not a question"):
        TryAgainEnv(data=path)
    with pytest.raises(UsageError, match="no file"):
        TryAgainEnv(data=tmp_path / "none.jsonl")


def test_answers_are_compared_by_what_they_say() -> None:
    assert normalised("1,234.") == normalised("1234.0") == "1234"
    assert normalised("7/0") == "7 0"
    assert normalised("An  Apple!") == normalised("apple")


@pytest.mark.parametrize("price", [10**9, 10**300])
def test_a_car_is_not_sold_for_more_than_is_asked(price: int) -> None:
    env = CarDealerEnv()
    env.reset(seed=0)
    (said,), reward, terminated, _, info = env.step({"name": "offer", "arguments": {"price": price}})
    assert "offer that or less" in said.text and not terminated and not info["is_valid"] and reward == 0
