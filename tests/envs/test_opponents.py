"""Opponents and customers by a fuzz: they play legally, and a fault of theirs is not the agent's success."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.casts import against
from testkit.fake_openai import FakeOpenAI, completion
from testkit.tau2_worlds import write_airline, write_telecom

from agentgym import Env, Message, evaluate, make
from agentgym.check.policies import random_action
from agentgym.env.game_env import SELF, GameEnv
from agentgym.envs.domains.env import Grade
from agentgym.envs.domains.users import END_MARKS, OUT_OF_SCOPE, is_end
from agentgym.envs.games.kuhn import KuhnPokerEnv
from agentgym.envs.games.negotiation import NegotiationEnv
from agentgym.envs.games.tictactoe import TicTacToeEnv
from agentgym.errors import EnvError, EpisodesFailedError
from agentgym.evals.policies import scripted
from agentgym.rollout.match import play_task
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Observation, Status

GAMES: Sequence[type[GameEnv]] = (KuhnPokerEnv, NegotiationEnv, TicTacToeEnv)
OPPONENTS = [(game, name) for game in GAMES for name in sorted({"random", *game.opponents})]
NONSENSE = ("", "I do not know.", "###STOP###", "bet\nbet?", "yes", "0", "-1", "accept accept", "[pass]!", "½")
PHRASES = (
    "Hello.",
    "Is there anything else I can do for you?",
    "Unfortunately that is not possible.",
    "Do you confirm (yes/no)?",
    "What is your email?",
    "It has been done.",
    "Goodbye. ###STOP###",
    "###TRANSFER###",
    "Which order number and which items, and why?",
    "I will do that now. One moment.",
    "Yes. No. Yes.",
    "\u202e???",
)


def episode(env: Env, act: Callable[[], Message], seed: int, turns: int = 60) -> dict[str, Any]:
    """Play until the end, and return the last info."""
    env.reset(seed=seed)
    info: dict[str, Any] = {}
    for _ in range(turns):
        *_, terminated, truncated, info = env.step(act())
        if terminated or truncated:
            break
    return info


@pytest.mark.parametrize(("game", "opponent"), OPPONENTS, ids=[f"{game.__name__}-{name}" for game, name in OPPONENTS])
def test_built_in_opponents_make_legal_moves(game: type[GameEnv], opponent: str) -> None:
    """An illegal move would raise. An agent that writes nonsense never succeeds."""
    outcomes = set()
    for seed in range(60):
        env: Any = game(opponent=opponent)
        outcomes.add(episode(env, _random(env, seed), seed).get("success"))
        wrong = episode(env, _said(NONSENSE[:4], seed), seed)
        assert wrong["success"] is False
    assert outcomes <= {True, False}


@pytest.mark.parametrize("game", GAMES)
def test_a_built_in_opponent_that_cheats_voids_the_game(game: type[GameEnv]) -> None:
    class Cheating(game):  # type: ignore[misc, valid-type]
        opponents = {"cheat": lambda state, rng: "a move that nobody has"}  # noqa: RUF012

    with pytest.raises(EnvError, match="the built-in opponent played 'a move that nobody has'"):
        for seed in range(20):
            env = Cheating(opponent="cheat")
            episode(env, _random(env, seed), seed)


def _mumble(env: Env, said: Observation, rng: np.random.Generator) -> Message:
    return Message("assistant", "eh")


def _said(lines: Sequence[str], seed: int) -> Callable[[], Message]:
    """Return a function that draws one of the lines."""
    rng = np.random.default_rng(seed)
    return lambda: Message("assistant", lines[int(rng.integers(len(lines)))])


def _random(env: Env, seed: int) -> Callable[[], Message]:
    """Return a function that draws a legal move."""
    rng = np.random.default_rng(seed)
    return lambda: random_action(env, (), rng)


@pytest.mark.parametrize("game", GAMES)
def test_the_forfeit_of_an_opponent_is_void(game: type[GameEnv]) -> None:
    """A policy of a file that writes nonsense loses by forfeit; that says nothing of the agent."""
    env: Any = game(opponent=SELF)
    task = env.tasks("train")[0]
    legal = scripted(random_action)
    for seed in range(8):
        request = RolloutRequest(task=task, seed=seed, make_agent=legal, roles=against(scripted(_mumble)))
        (played,) = asyncio.run(play_task(env, request))
        assert played.success is not True
        lost = RolloutRequest(task=task, seed=seed, make_agent=scripted(_mumble), roles=against(legal))
        (own,) = asyncio.run(play_task(env, lost))
        assert (own.status, own.success) == (Status.COMPLETED, False), "its own forfeit is a loss, which counts"


def test_a_models_forfeit_is_void_too(tmp_path: Path) -> None:
    """Only games that a model plays by the rules count; an evaluation of forfeits alone has no result."""
    says = ["bet"]
    server = FakeOpenAI(lambda body: completion(says[-1]))
    against = partial(
        evaluate,
        "agentgym/KuhnPoker-v0",
        "random",
        kwargs={"opponent": "self"},
        opponent=f"openai:{server.url}?model=m",
        episodes=6,
    )
    assert {one.status for one in against(run_dir=tmp_path / "legal").trajectories} == {Status.COMPLETED}
    says.append("eh")
    told = r"6 of 6 episodes failed.*the opponent forfeits as player.*another one \(--opponent"
    with pytest.raises(EpisodesFailedError, match=told):
        against(run_dir=tmp_path / "nonsense")
    server.close()


def test_an_invalid_task_of_an_opponent_is_void() -> None:
    """A solver that had no turn has not lost; the proposer's own invalid task is its loss."""
    env: Any = make("agentgym/WikiSelfPlay-v0", max_turns=4)
    task = env.tasks("train")[0]
    statuses = set()
    for seed in range(8):
        request = RolloutRequest(task=task, seed=seed, make_agent=scripted(_mumble), roles=against(scripted(_mumble)))
        (played,) = asyncio.run(play_task(env, request))
        statuses.add((played.status, played.success, played.player))
    assert statuses == {(Status.COMPLETED, False, 0), (Status.ENV_ERROR, None, 0)}


@pytest.fixture(params=["Retail", "CarDealer", "Tau2Airline", "Tau2Telecom"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Env:
    """An environment with customers; those of tau2 on small files of our own."""
    if request.param == "Tau2Airline":
        return make("agentgym/Tau2Airline-v0", data_dir=write_airline(tmp_path))
    if request.param == "Tau2Telecom":
        return make("agentgym/Tau2Telecom-v0", data_dir=write_telecom(tmp_path))
    return make(f"agentgym/{request.param}-v0")


def test_customers_never_hand_over_a_success(served: Env) -> None:
    """Talk alone, without a tool, makes no change: it succeeds only where none is wanted, and the grade says so."""
    env: Any = served
    for seed in range(40):
        info = episode(env, _said(PHRASES, seed), seed, 40)
        if not info.get("success"):
            continue
        writes = [one.name for one in env.case.task.actions if one.name in env.toolkit.writes]
        assert not writes and not env.case.task.communicate_info, f"seed {seed}: {writes}"


@pytest.mark.parametrize("mark", END_MARKS)
def test_a_users_model_that_leaves_at_once_is_an_infrastructure_failure(mark: str) -> None:
    assert is_end(mark)
    server = FakeOpenAI(lambda body: completion(f"Thank you, bye. {mark}"))
    env = make("agentgym/Retail-v0", user={"url": server.url, "model": "customer"})
    with pytest.raises(EnvError, match="the user ended the conversation in its first message"):
        env.reset(seed=0)
    env.close()
    server.close()


def test_a_user_who_leaves_its_scenario_is_no_success() -> None:
    """The database is as it should be where nothing was wanted; the conversation is no solution all the same."""
    said = iter(["Hello, I need help.", f"I do not know that. {OUT_OF_SCOPE}"])
    server = FakeOpenAI(lambda body: completion(next(said)))
    env: Any = make("agentgym/Retail-v0", user={"url": server.url, "model": "customer"})
    env.reset(seed=0)
    env.grade = lambda: Grade(is_database_right=True, untold=())
    *_, terminated, _, info = env.step("What is the meaning of life?")
    assert terminated and info["success"] is False
    env.close()
    server.close()


def test_an_empty_message_of_a_user_is_sampled_again() -> None:
    seeds: list[int] = []

    def answer(body: dict[str, Any]) -> Any:
        seeds.append(body["seed"])
        return completion("" if len(seeds) == 1 else "Hello, where is my order?")

    server = FakeOpenAI(answer)
    env = make("agentgym/Retail-v0", user={"url": server.url, "model": "customer"})
    observation, _ = env.reset(seed=0)
    assert observation[0].text.endswith("Hello, where is my order?") and seeds[0] != seeds[1] and len(seeds) == 2
    env.close()
    server.close()
