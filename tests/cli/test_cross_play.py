"""agentgym cross-play: every policy against every other, resumed, and bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.evals.episodes import read_groups, read_rows

Command = Callable[..., Any]
GAME = "agentgym/TicTacToe-v0"
THREE = ("--policy", "oracle", "--policy", "random", "--policy", "idle")


def test_policies_are_rated_and_a_forfeit_is_a_loss(run: Command) -> None:
    value = run("cross-play", GAME, *THREE, "--episodes", "6", "--run-dir", "x", "--json").json
    assert [one["policy"] for one in value["ratings"]] == ["oracle", "random", "idle"]
    assert json.loads(Path("x/cross_play.json").read_text()) == value
    lost = [pair for pair in value["pairings"] if pair["policy"] == "idle"]
    won = [pair for pair in value["pairings"] if pair["opponent"] == "idle"]
    assert {pair["num_won"] for pair in lost} == {0} and {pair["num_won"] for pair in won} == {6}
    assert {pair["num_failed"] for pair in value["pairings"]} == {0}
    assert len(value["pairings"]) == 6
    assert value["ratings"][2]["points"] == 0.0


def test_each_task_is_played_from_both_seats(run: Command) -> None:
    run("cross-play", GAME, "--policy", "oracle", "--policy", "random", "--episodes", "8", "--run-dir", "x")
    seats = [
        {group.task.id: group.trajectories[0].player for group in read_groups(Path("x/pairs") / pair)}
        for pair in ("1-2", "2-1")
    ]
    assert seats[0] == seats[1]  # so that in each pair of games both have had the seat
    assert {*seats[0].values()} == {0, 1}


def test_a_stopped_one_goes_on_where_it_was(run: Command) -> None:
    whole = run("cross-play", GAME, *THREE, "--episodes", "4", "--run-dir", "x", "--json").json
    kept = read_rows(Path("x/pairs/1-2"))
    shutil.copytree("x/pairs/2-1", "empty")
    for path in Path("x/pairs/2-1").iterdir():
        if path.name not in ("config.json", "config.json.sig", ".signature") and path.is_file():
            path.unlink()
    shutil.copy("empty/config.json", "x/pairs/2-1/config.json")
    Path("x/cross_play.json").unlink()
    again = run("cross-play", "--resume", "x", "--json").json
    assert again == whole
    assert read_rows(Path("x/pairs/1-2")) == kept


def test_a_page_shows_ratings_and_the_games_of_each_pair(run: Command) -> None:
    """Also of a cross-play that was stopped, which has no ratings yet."""
    run("cross-play", GAME, *THREE, "--episodes", "2", "--run-dir", "x")
    path = Path(run("view", "x", "--episodes", "1", "--json").json["report"])
    page = path.read_text()
    for told in ("cross-play", "Elo", "random against oracle", "games", "oracle against idle"):
        assert told in page
    Path("x/cross_play.json").unlink()
    shutil.rmtree("x/pairs/3-2")
    run("view", "x")
    page = path.read_text()
    assert "Elo" not in page and "idle against random" not in page and "random against oracle" in page
    said = run("export", "x", "--out", "y.jsonl").assert_one_line_error(2)
    assert "has several pairs; name one by --evaluation: oracle against random" in said


def test_a_changed_file_of_ratings_is_one_line_and_a_resume_writes_it_anew(run: Command) -> None:
    run("cross-play", GAME, "--policy", "oracle", "--policy", "random", "--episodes", "2", "--run-dir", "x")
    for changed in ('{"ratings": [{"policy": "oracle"}]}', '{"ratings": "none"}', '{"ratings": 3}'):
        Path("x/cross_play.json").write_text(changed)
        said = run("view", "x").assert_one_line_error(2)
        assert "x/cross_play.json holds no ratings" in said and "agentgym cross-play --resume x" in said
    run("cross-play", "--resume", "x")
    assert run("view", "x").out
    said = run("table", "x").assert_one_line_error(2)
    assert "its kind is cross-play; agentgym view shows it" in said


def test_text_at_a_narrow_terminal(run: Command) -> None:
    done = run("cross-play", GAME, "--policy", "oracle", "--policy", "random", "--episodes", "2", "--run-dir", "x")
    assert "Elo" in done.out and "results: x" in done.out and "oracle" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name one game and its policies"),
        ((GAME,), "at least two policies, got none"),
        ((GAME, "--policy", "oracle"), "at least two policies, got oracle"),
        ((GAME, "--policy", "oracle", "--policy", "oracle"), "at least two policies, got oracle"),
        ((GAME, "--policy", "oracle", "--policy", "oracel"), "oracel"),
        ((GAME, *THREE, "roles.opponent=random"), "takes no roles"),
        ((GAME, *THREE, "opponent=random"), "leave opponent=random out"),
        ((GAME, *THREE, "--max-cost", "1"), "takes no max_cost"),
        ((GAME, "--policy", "nowhere@all", "--policy", "random"), "nowhere is not the folder of a training run"),
        (
            ("agentgym/Household-v0", *THREE),
            "a game of two players, such as KuhnPoker-v0; agentgym/Household-v0 is none",
        ),
        (
            ("agentgym/SkillChain-v0", *THREE),
            "a game of two players, such as KuhnPoker-v0; agentgym/SkillChain-v0 is none",
        ),
        (("--resume", "nowhere"), "nowhere"),
        (("--resume", "x", "--policy", "oracle"), "leave them out to resume"),
    ],
)
def test_bad_input_is_one_line(run: Command, words: tuple[str, ...], said: str) -> None:
    assert said in run("cross-play", *words).assert_one_line_error()
    assert not Path("runs").exists() or not [*Path("runs").iterdir()]
