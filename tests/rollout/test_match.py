"""Games of several players: a trajectory for each, and what happens when one of them cannot go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from testkit import made_groups as made
from testkit.casts import against
from testkit.tokenizers_for_tests import trained

from agentgym.check.policies import ScriptedEngine, random_action
from agentgym.credit.columns import turn_table
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.credited import turn_credits
from agentgym.credit.estimators.rae import RaeOptions
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.env.game_env import GameEnv
from agentgym.errors import UsageError
from agentgym.evals.policies import scripted
from agentgym.evals.runner import evaluate
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import Agent, Decision, MakeAgent, ModelAgent, ScriptedAgent
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.match import play_task
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import EpisodeLimits, RolloutRequest
from agentgym.trainers.data.samples import filter_groups
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.trainers.reporting.rollout_metrics import describe_rollouts
from agentgym.types import Message, Observation, Status, Task, Trajectory, TrajectoryGroup

LIMITS = EpisodeLimits(reset_timeout_s=60.0, step_timeout_s=1.0)


@dataclass(frozen=True)
class Pile:
    """Nim with one pile: take 1 or 2; who takes the last wins."""

    left: int
    player: int = 0

    def actions(self) -> tuple[str, ...]:
        return tuple(str(number) for number in (1, 2) if number <= self.left)

    def after(self, action: str) -> Pile:
        return Pile(self.left - int(action), 1 - self.player)

    def returns(self) -> tuple[float, float]:
        return (-1.0, 1.0) if self.player == 0 else (1.0, -1.0)

    def view(self, player: int) -> str:
        return f"{self.left} left."


class Nim(GameEnv):
    """Four matches; subclasses break."""

    rules = "Take 1 or 2."

    def __init__(self, *, opponent: str = "self", max_errors: int = 1) -> None:
        super().__init__(opponent=opponent, max_errors=max_errors)

    def deal(self, task: Task) -> Pile:
        return Pile(4)


TASK = Task(id="t-0", split="train", seed=0)


def saying(*moves: str) -> MakeAgent:
    """Agents of all players that say the moves in the order of the game."""
    left = list(moves)

    def make(env: Env, seed: int) -> Agent:
        return ScriptedAgent(lambda observation: Message("assistant", left.pop(0)))

    return make


def play(env: Env, make_agent: MakeAgent, **kwargs: object) -> tuple[Trajectory, ...]:
    request = RolloutRequest(task=TASK, make_agent=make_agent, limits=LIMITS, **{"seed": 1, **kwargs})  # type: ignore[arg-type]
    return asyncio.run(play_task(env, request))


def replies(trajectory: Trajectory) -> list[str]:
    return [message.text for turn in trajectory.turns for message in turn.replies]


def test_each_player_has_a_trajectory_of_its_own() -> None:
    first, second = play(Nim(), saying("1", "2", "1"))
    assert (first.player, second.player) == (0, 1)
    assert [turn.action.text for turn in first.turns] == ["1", "1"]
    assert [turn.action.text for turn in second.turns] == ["2"]
    assert (first.reward, first.success, second.reward, second.success) == (1.0, True, -1.0, False)
    assert {first.status, second.status} == {Status.COMPLETED}
    assert second.turns[-1].reward == -1.0, "the loser's last turn gets the result, though it did not end the game"


def test_a_game_that_cannot_start_is_a_failure_of_its_environment() -> None:
    class Broken(Nim):
        def deal(self, task: Task) -> Pile:
            raise OSError("no table")

    (failed,) = play(Broken(), saying(), num_retries=1)
    assert (failed.env_id, failed.status, failed.num_retries) == ("Broken", Status.ENV_ERROR, 1)
    assert failed.error is not None and "Broken reset: OSError: no table" in failed.error


def test_a_player_reads_what_concerns_it_alone() -> None:
    first, second = play(Nim(), saying("1", "2", "1"))
    assert [message.text for message in first.observation] == ["Take 1 or 2.\n4 left."]
    assert [message.text for message in second.observation] == ["Take 1 or 2.\n3 left."]
    assert replies(first) == ["1 left.", "0 left."]
    assert replies(second) == ["0 left."]
    assert [turn.state_key for turn in first.turns] == ['[0,"4 left."]', '[0,"1 left."]']


def test_an_impossible_move_is_answered_and_then_forfeits() -> None:
    first, second = play(Nim(), saying("3", "1", "2", "what?"))
    assert [turn.is_valid for turn in first.turns] == [False, True, False]
    assert replies(first)[0].startswith("That is no move you can make.")
    assert (first.reward, second.reward) == (-1.0, 1.0)
    assert replies(second)[-1] == "You win: the other player forfeits."
    assert first.status is Status.COMPLETED, "what a policy does wrong is data"


def test_a_player_that_never_came_to_move_has_nothing_to_learn_from() -> None:
    first, second = play(Nim(max_errors=0), saying("three"))
    assert (first.reward, first.success) == (-1.0, False)
    assert (second.turns, second.status, second.success) == ((), Status.COMPLETED, True)
    assert (first.voids, second.voids, second.is_unaided) == ((), (), False)


class Broken(Nim):
    """Breaks at the second player's move."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault

    async def arespond(self, action: Message) -> Observation:
        if self.player == 1 and self._fault == "hang":
            await asyncio.sleep(60)
        if self.player == 1:
            raise OSError("the board fell")
        return self.respond(action)


@pytest.mark.parametrize(("fault", "status"), [("crash", Status.ENV_ERROR), ("hang", Status.TIMEOUT)])
def test_what_the_infrastructure_spoils_it_spoils_for_both(fault: str, status: Status) -> None:
    first, second = play(Broken(fault), saying("1", "1", "1"))
    assert (first.reward, second.reward) == (None, None)
    assert (first.status, second.status) == (Status.ENV_ERROR, status)
    assert "failed for another player" in str(first.error)


def test_waiting_for_the_other_player_is_not_hanging() -> None:
    class Slow(ScriptedAgent):
        async def decide(self) -> Decision | None:
            await asyncio.sleep(1.2 * LIMITS.step_timeout_s)
            return await super().decide()

    first, second = play(Nim(), lambda env, seed: Slow(lambda observation: Message("assistant", "2")))
    assert {first.status, second.status} == {Status.COMPLETED}


def test_an_error_of_ours_stops_both() -> None:
    with pytest.raises(UsageError, match="no oracle"):
        play(Nim(), lambda env, seed: ScriptedAgent(lambda observation: env.oracle()))


def model_actor(context: int) -> MakeAgent:
    tokenizer = trained(CHAT_TEMPLATE)
    renderer = ChatRenderer(tokenizer)
    move = [*tokenizer.encode("1", add_special_tokens=False), renderer.turn_end_ids[0]]
    engine = ScriptedEngine(lambda prompt: move, max_context_tokens=context)
    return lambda env, seed: ModelAgent(engine, renderer, SamplingParams(max_new_tokens=8), seed)


def test_each_player_has_a_token_buffer_of_its_own() -> None:
    first, second = play(Nim(), model_actor(4096))
    for trajectory in (first, second):
        (segment,) = trajectory.segments
        assert sum(segment.loss_mask) == 2 * len(trajectory.turns)
    assert first.turns[0].prompt_ids != second.turns[0].prompt_ids
    assert first.seed != second.seed


def test_who_runs_out_of_context_forfeits() -> None:
    needed = len(play(Nim(), model_actor(4096))[0].segments[0].token_ids)
    first, second = play(Nim(), model_actor(needed - 2))
    assert (first.status, first.reward, first.success) == (Status.TRUNCATED_TOKENS, -1.0, False)
    assert (second.status, second.reward, second.success) == (Status.COMPLETED, 1.0, True)


def test_against_an_opponent_only_the_policy_is_kept() -> None:
    seats = set()
    for seed in range(8):
        (kept,) = play(Nim(), scripted(random_action), seed=seed, roles=against(scripted(random_action)))
        assert kept.seed == seed
        seats.add(kept.player)
    assert seats == {0, 1}
    with pytest.raises(UsageError, match="has one player and takes no opponent"):
        play(Nim(opponent="random"), saying("1"), roles=against(saying("1")))


def groups_of(make_env: Callable[[], Env], *, group_size: int = 3, max_retries: int = 1) -> tuple[TrajectoryGroup, ...]:
    config = GroupConfig(group_size=group_size, min_valid=1, max_retries=max_retries, max_failure_rate=1.0)

    async def run() -> tuple[TrajectoryGroup, ...]:
        pool = EnvPool(make_env, 4)
        try:
            return await run_groups([(0, TASK), (1, TASK)], pool, scripted(random_action), config, seed=0)
        finally:
            await pool.close()

    return asyncio.run(run())


def test_a_group_holds_all_players_of_its_games() -> None:
    for group in groups_of(Nim):
        assert [trajectory.player for trajectory in group.trajectories] == [0, 1] * 3
        assert sum(trajectory.reward or 0.0 for trajectory in group.trajectories) == 0.0


def test_a_spoilt_game_is_played_again_as_a_whole() -> None:
    faults = iter(["crash", *["none"] * 20])

    class Sometimes(Nim):
        async def arespond(self, action: Message) -> Observation:
            if next(faults) == "crash":
                raise OSError("the board fell")
            return self.respond(action)

    group, _ = groups_of(Sometimes, group_size=2)
    assert [trajectory.status for trajectory in group.trajectories] == [Status.COMPLETED] * 4
    assert sorted(trajectory.num_retries for trajectory in group.trajectories) == [0, 0, 1, 1]


def test_credit_compares_the_same_player() -> None:
    groups = groups_of(Nim)
    table = turn_table(groups, ["role", "player_outcome", "group_keys"])
    assert table.role is not None and table.player_outcome is not None and table.group_keys is not None
    assert len(set(zip(table.group.tolist(), table.role.tolist(), strict=True))) == 4
    assert len(table.group_keys) == 4
    assert [key.endswith(":1") for key in table.group_keys] == [False, True] * 2
    assert set(table.player_outcome.tolist()) == {-1.0, 1.0}


def test_rae_keeps_a_baseline_of_each_player() -> None:
    groups = groups_of(Nim)
    result = credit_groups(groups, CreditConfig(estimator="rae", options=RaeOptions(decay=0.5)))
    credit = turn_credits(groups, result)
    for player in (0, 1):
        baseline = 0.0
        for group, of_group in zip(groups, credit, strict=True):
            for trajectory, turns in zip(group.trajectories, of_group, strict=True):
                if trajectory.player == player:
                    assert trajectory.reward is not None
                    assert {turn.advantage for turn in turns} == {trajectory.reward - baseline}
                    baseline = 0.5 * baseline + 0.5 * trajectory.reward
        assert result.state.memory["rae"][str(player)] == pytest.approx(baseline)
    assert result.state.memory["rae"]["0"] == pytest.approx(-result.state.memory["rae"]["1"])


def evaluated(tmp_path: Path, make_env: Callable[[], Env], opponent: MakeAgent | None) -> float:
    async def run() -> float:
        pool = EnvPool(make_env, 4)
        summary = await evaluate(
            Nim().tasks("test")[:20],
            pool,
            scripted(random_action),
            out_dir=tmp_path,
            suite_or_env="nim",
            policy="random",
            seed=0,
            group_config=GroupConfig(),
            roles=against(opponent),
        )
        await pool.close()
        return summary.success

    return asyncio.run(run())


def test_a_policy_is_evaluated_against_another(tmp_path: Path) -> None:
    def wins(env: Env, observation: Observation, rng: np.random.Generator) -> Message:
        return Message(
            "assistant", "1" if "4 left" in observation[0].text else random_action(env, observation, rng).text
        )

    assert 0.0 < evaluated(tmp_path, Nim, scripted(wins)) < 1.0
    with pytest.raises(ExceptionGroup) as raised:
        evaluated(tmp_path, Nim, None)
    assert "evaluate against an opponent" in str(raised.value.exceptions[0])


def metrics_of(*games: tuple[Trajectory, ...], version: int = 0) -> dict[str, float]:
    """Return the metrics of a step whose groups are one game each."""
    groups = [TrajectoryGroup(ordinal=number, task=TASK, trajectories=players) for number, players in enumerate(games)]
    credit = credit_groups(groups, CreditConfig(estimator="rae"))
    return describe_rollouts(filter_groups(groups, credit, 1, "off"), version)


def test_games_that_every_first_mover_forfeits_are_no_success() -> None:
    """The second player never comes to move: neither a failure of the infrastructure nor evidence about the policy."""
    metrics = metrics_of(*(play(Nim(max_errors=0), saying("three")) for _ in range(3)))
    assert (metrics["success"], metrics["return"], metrics["num_turns"]) == (0.0, -1.0, 1.0)
    assert metrics["forfeit_share"] == 1.0 and metrics["status/env_error"] == 0.0
    assert not [name for name in metrics if name.startswith("voids/")]


def test_metrics_of_games_with_known_answers() -> None:
    metrics = metrics_of(play(Nim(), saying("1", "2", "1")), play(Nim(max_errors=0), saying("1", "three")))
    assert metrics["success"] == 0.5, "player 1 won both games, the second by a forfeit"
    assert (metrics["player/0/success"], metrics["player/1/success"]) == (1.0, 0.0)
    assert metrics["num_turns"] == (2 + 1 + 1 + 1) / 4
    assert metrics["forfeit_share"] == 0.5
    assert metrics["invalid_share"] == 1 / 5


def test_tokens_that_are_trained_again_are_as_old_as_their_policy() -> None:
    old = made.turn([1], [2, 3], reward=1.0)
    sampled = [replace(old, completion=replace(old.completion, policy_versions=(at, at))) for at in (2, 5)]
    again, new = (made.trajectory([one]) for one in sampled)
    again, shown = replace(again, replayed_step=2), replace(again, is_demonstration=True)
    trained = made.group(again, new, shown)
    credit = credit_groups([trained], CreditConfig(estimator="grpo"))
    metrics = describe_rollouts(filter_groups([trained], credit, 1, "off"), 5)
    assert (metrics["staleness_mean"], metrics["staleness_max"]) == (1.5, 3.0)
    assert (metrics["num_replayed"], metrics["sampled_tokens"]) == (1.0, 2.0)
