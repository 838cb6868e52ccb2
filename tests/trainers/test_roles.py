"""Roles: models that play sub-agents and players beside the policy, frozen or trained."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from testkit import TESTKIT
from testkit.fake_openai import FakeOpenAI, completion
from testkit.ranks import forked

from agentgym import evaluate
from agentgym.errors import AgentGymError, EpisodesFailedError
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides, save_config
from agentgym.trainers.config.roles import Past
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.planning.dry_run import dry_run
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run
from agentgym.trainers.train import train
from agentgym.types import Trajectory, Turn

RESUMED = "import sys; from pathlib import Path; from agentgym.trainers.config.overrides import load_config; \
from agentgym.trainers.train import train; d = Path(sys.argv[1]); \
train(load_config(d / 'config.json'), d, resume=True)"
SERVED = ("engine.kind=vllm", 'engine.urls=["http://127.0.0.1:1"]')
ENV_FILE = TESTKIT / "asking_env.py"


def asking(*overrides: str) -> TrainConfig:
    """Return a run in which a manager asks a clerk, from scratch."""
    made: Any = replace(
        apply_overrides(load_recipe("tiny"), [f"env.id={ENV_FILE}:Manager-v0", "sampling.max_new_tokens=8"]),
        model=ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=320, max_context_tokens=160),
        sft=SftConfig(num_demos=320, num_epochs=2, batch_size=8),
        num_steps=2,
        groups_per_step=3,
        group=GroupConfig(group_size=6, num_envs=8),
        eval=EvalConfig(num_episodes=4),
        zero_variance_filter="off",
        checkpoint_every=1,
    )
    return apply_overrides(made, ["credit.estimator=m_grpo", *overrides])


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model that has seen demonstrations of both agents."""
    run_dir = tmp_path_factory.mktemp("warm") / "run"
    train(asking("num_steps=0"), run_dir)
    return run_dir / "model"


def on(warm: Path, *overrides: str) -> TrainConfig:
    return apply_overrides(asking(), [f"model.path={warm}", "sft.num_demos=0", *overrides])


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]


def episodes(run_dir: Path) -> list[Trajectory]:
    records = [record for step in recorded_steps(run_dir) for record in read_records(record_path(run_dir, step))]
    return [one for record in records for one in record.group.trajectories]


def num_tokens(turns: list[Turn]) -> int:
    return sum(len(turn.completion.token_ids) for turn in turns)


def weights(run_dir: Path, role: str = "") -> dict[str, torch.Tensor]:
    return load_file((run_dir / "roles" / role if role else run_dir) / "model" / "model.safetensors")


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


# -------------------------------------------------------------------------------------------------- frozen roles


def test_a_frozen_role_plays_and_is_not_trained(warm: Path, tmp_path: Path) -> None:
    """The clerk is a script; credit that cannot tell agents apart is allowed, since it sees the manager alone."""
    run_dir = tmp_path / "run"
    train(on(warm, "roles.clerk.policy=oracle", "credit.estimator=gigpo"), run_dir)
    played = episodes(run_dir)
    asked = [one for one in played if one.frozen_segments]
    assert len(asked) > 4
    assert {(s.agent, s.role) for one in played for s in one.segments} == {("", "")}
    assert {(s.agent, s.role) for one in asked for s in one.frozen_segments} == {("clerk", "clerk")}
    handed = {
        getattr(turn.action.calls[0], "name", "") for one in asked for s in one.frozen_segments for turn in s.turns
    }
    assert handed == {"hand"}
    own = [turn for one in played for turn in one.turns]
    assert sum(row["trained_tokens"] for row in rows(run_dir)) == num_tokens(own)


def test_demonstrations_of_a_frozen_role_are_left_out(tmp_path: Path) -> None:
    """The warm start teaches the policy its own part alone."""
    run_dir = tmp_path / "run"
    train(asking("roles.clerk.policy=oracle", "num_steps=0", "sft.num_demos=16", "sft.num_epochs=1"), run_dir)
    with_clerk = tmp_path / "both"
    train(asking("num_steps=0", "sft.num_demos=16", "sft.num_epochs=1"), with_clerk)

    def num_rows(folder: Path) -> int:
        return len([row for row in read_json_lines(folder / "metrics.jsonl") if row["phase"] == "sft"])

    assert num_rows(with_clerk) == 2 * num_rows(run_dir) > 0


def test_a_dead_endpoint_role_is_a_failure_and_never_a_loss(warm: Path, tmp_path: Path) -> None:
    server = FakeOpenAI(lambda body: (500, "down"))
    settings = on(
        warm,
        f"roles.clerk.policy=openai:{server.url}?model=only&num_tries=1",
        "eval.num_episodes=1",
        "group.max_retries=0",
    )
    try:
        with pytest.raises(EpisodesFailedError, match=r"failed because of the infrastructure.*sub-agent clerk"):
            train(settings, tmp_path / "run")
    finally:
        server.close()
    assert not [one for one in episodes(tmp_path / "run") if one.success is False and one.error]


def test_an_endpoint_plays_a_role(warm: Path, tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Any:
        number = body["messages"][-1]["content"].split("holds ")[1][0]
        return completion(None, ("hand", f'{{"number": {number}}}'), prompt_tokens=9, completion_tokens=3)

    server = FakeOpenAI(answer)
    run_dir = tmp_path / "run"
    try:
        train(on(warm, f"roles.clerk.policy=openai:{server.url}?model=only", "num_steps=1"), run_dir)
    finally:
        server.close()
    asked = [one for one in episodes(run_dir) if one.frozen_segments]
    assert asked and all(one.frozen_segments[0].turns[0].usage for one in asked), "an endpoint gives no token ids"


# -------------------------------------------------------------------------------------------------- trained roles


@pytest.fixture(scope="module")
def both(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("roles") / "both"
    train(on(warm, "roles.clerk.trained=true"), run_dir)
    return run_dir


def test_each_role_is_trained_on_its_own_turns(both: Path) -> None:
    played = episodes(both)
    tokens = {
        role: num_tokens([turn for one in played for s in one.segments if s.role == role for turn in s.turns])
        for role in ("", "clerk")
    }
    assert tokens["clerk"] > 0 and not any(one.frozen_segments for one in played)
    assert sum(row["trained_tokens"] for row in rows(both)) == tokens[""]
    assert sum(row["role/clerk/trained_tokens"] for row in rows(both)) == tokens["clerk"]
    assert all(row["logprob_gap_max"] < 1e-4 > (row["role/clerk/logprob_gap_max"] or 0) for row in rows(both))
    versions = {
        v for one in played for s in one.segments if s.role for t in s.turns for v in t.completion.policy_versions
    }
    assert versions == {0, 1}


def test_two_roles_in_one_run_equal_two_runs_of_one_role(warm: Path, tmp_path: Path) -> None:
    """The other role's tokens have no gradient: with the same first step, each model gets the same bits."""
    train(on(warm, "num_steps=1", "roles.clerk.trained=true"), tmp_path / "both")
    only = ("num_steps=1", "roles.clerk.trained=true")
    train(on(warm, *only, "roles.policy.train_every=2", "roles.policy.train_at=1"), tmp_path / "clerk")
    train(on(warm, *only, "roles.clerk.train_every=2", "roles.clerk.train_at=1"), tmp_path / "policy")
    start = load_file(warm / "model.safetensors")
    assert are_equal(weights(tmp_path / "both"), weights(tmp_path / "policy"))
    assert are_equal(weights(tmp_path / "both", "clerk"), weights(tmp_path / "clerk", "clerk"))
    assert are_equal(weights(tmp_path / "clerk"), start), "the policy was not trained"
    assert are_equal(weights(tmp_path / "policy", "clerk"), start), "the clerk was not trained"
    assert not are_equal(weights(tmp_path / "both"), start)
    assert not are_equal(weights(tmp_path / "both", "clerk"), start)


def test_a_run_of_two_roles_goes_on_to_the_same_weights(both: Path, warm: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    shutil.copytree(both, stopped)
    shutil.rmtree(stopped / "checkpoints" / "rl-000002")
    for folder in (stopped / "model", stopped / "roles"):
        shutil.rmtree(folder)
    train(on(warm, "roles.clerk.trained=true"), stopped, resume=True)
    assert are_equal(weights(stopped), weights(both))
    assert are_equal(weights(stopped, "clerk"), weights(both, "clerk"))


def test_each_role_has_a_critic_of_its_own(warm: Path, tmp_path: Path) -> None:
    """As in MARFT: values of each agent's turns by a copy of its own model, in one chain over time."""
    settings = on(
        warm,
        "credit.estimator=turn_gae",
        "critic.by_role=true",
        "critic.lr=1e-3",
        "roles.clerk.trained=true",
    )
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(settings, whole)
    for row in rows(whole):
        assert row["critic_loss"] > 0 and row["role/clerk/critic_loss"] > 0
        assert row["critic_loss"] != row["role/clerk/critic_loss"]
    record = read_records(record_path(whole, 1))[0]
    values, credit = record.columns["value"], record.credit
    turns = [(t.agent, turn) for one in record.group.valid for t in one.segments for turn in t.turns]
    assert len(values) == len(turns) and all(isinstance(value, float) for value in values)
    assert {agent for agent, _ in turns} == {"", "clerk"} and sum(map(len, credit)) == len(turns)
    shutil.copytree(whole, stopped)
    shutil.rmtree(stopped / "checkpoints" / "rl-000002")
    for folder in (stopped / "model", stopped / "roles"):
        shutil.rmtree(folder)
    train(settings, stopped, resume=True)
    for role in ("", "clerk"):
        assert are_equal(weights(whole, role), weights(stopped, role)), role


def test_a_role_has_an_optimizer_and_a_loss_of_its_own(warm: Path, tmp_path: Path) -> None:
    settings = on(
        warm,
        "num_steps=1",
        "roles.clerk.trained=true",
        "roles.clerk.optimizer.lr=3e-5",
        "roles.clerk.optimizer.schedule=constant",
        'roles.clerk.loss.regularisers=[{"kind": "kl"}]',
    )
    train(settings, tmp_path / "run")
    (row,) = rows(tmp_path / "run")
    assert row["role/clerk/lr"] == pytest.approx(3e-5) and row["lr"] > 1e-3
    assert "role/clerk/kl" in row and "kl" not in row


def test_trained_roles_play_beside_rollouts_in_async_mode(warm: Path, tmp_path: Path) -> None:
    settings = on(warm, "roles.clerk.trained=true", "pipeline.mode=async", "num_steps=3")
    train(settings, tmp_path / "run")
    assert all(row["role/clerk/trained_tokens"] > 0 for row in rows(tmp_path / "run"))


def test_adapter_roles_share_the_weights_below(warm: Path, tmp_path: Path) -> None:
    run = Run(on(warm, "model.lora.rank=4", "roles.clerk.trained=true"), tmp_path, Ranks())
    other = dict(run.roles.trained["clerk"].policy.model.named_parameters())
    for name, weight in run.model.named_parameters():
        is_shared = other[name].data_ptr() == weight.data_ptr()
        assert is_shared == (not weight.requires_grad), name
    asyncio.run(run.close())


# ------------------------------------------------------------------------------------------- games and the past


def kuhn(*overrides: str) -> TrainConfig:
    small = ("groups_per_step=4", "sft.num_demos=400", "model.num_layers=1", "eval.num_episodes=4", "num_steps=3")
    return apply_overrides(load_recipe("kuhn"), [*small, "checkpoint_every=1", *overrides])


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the overrides of a run that begins with a model which knows the game's rules."""
    run_dir = tmp_path_factory.mktemp("kuhn") / "run"
    train(kuhn("num_steps=0"), run_dir)
    return [f"model.path={run_dir / 'model'}", "sft.num_demos=0"]


def test_versions_of_the_past() -> None:
    every = Past.read("self:4")
    assert every is not None
    assert [every.version(step) for step in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 4, 4, 8]
    league = Past.read("league:2")
    assert league is not None and league.versions(5) == (0, 2, 4)
    assert Past.read("oracle") is None


def test_an_earlier_version_plays_the_opponent(dealt: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(kuhn(*dealt, "roles.opponent.policy=self:2", "num_steps=4"), run_dir)
    assert [row["role/opponent/version"] for row in rows(run_dir)] == [0, 0, 0, 2]
    played = episodes(run_dir)
    assert {segment.role for one in played for segment in one.segments} == {""}
    assert {one.player for one in played} == {0, 1}, "the seed draws the policy's seat"
    met = [segment for one in played for segment in one.frozen_segments]
    assert met and {segment.role for segment in met} == {"opponent"}
    assert {v for s in met for turn in s.turns for v in turn.completion.policy_versions} == {0, 2}


def test_a_league_draws_versions_and_resumes(dealt: list[str], tmp_path: Path) -> None:
    settings = kuhn(*dealt, "roles.opponent.policy=league:1", "num_steps=6")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(settings, whole)
    versions = [row["role/opponent/version"] for row in rows(whole)]
    assert len(set(versions)) > 1 and all(version <= max(0, step - 1) for step, version in enumerate(versions))
    shutil.copytree(whole, stopped)
    shutil.rmtree(stopped / "checkpoints" / "rl-000006")
    shutil.rmtree(stopped / "model")
    train(settings, stopped, resume=True)
    assert are_equal(weights(whole), weights(stopped))
    assert [row["role/opponent/version"] for row in rows(stopped)] == versions


def test_both_players_have_models_of_their_own(dealt: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(kuhn(*dealt, "roles.player_2.trained=true", "num_steps=1"), run_dir)
    by_player = {(one.player, segment.role) for one in episodes(run_dir) for segment in one.segments}
    assert by_player == {(0, ""), (1, "player_2")}
    (row,) = rows(run_dir)
    assert row["trained_tokens"] > 0 and row["role/player_2/trained_tokens"] > 0


# ----------------------------------------------------------------------------------------------------- evaluation


def test_a_run_is_evaluated_with_its_roles(both: Path, tmp_path: Path) -> None:
    """The trained clerk plays its part; another policy can take it."""
    env = f"{ENV_FILE}:Manager-v0"
    as_trained = evaluate(env, str(both), run_dir=tmp_path / "trained")
    kept = json.loads((tmp_path / "trained" / "config.json").read_text())["eval"]
    assert kept["roles"] == {"clerk": str(both / "roles" / "clerk" / "model")}
    assert {s.role for one in as_trained.trajectories for s in one.frozen_segments} == {"clerk"}
    after = json.loads((both / "eval" / "after" / "summary.json").read_text())
    assert as_trained.success == after["success"], "the run's own evaluation, again"
    other = evaluate(env, str(both), roles={"clerk": "oracle"}, episodes=6, run_dir=tmp_path / "oracle")
    asked = [one for one in other.trajectories if one.frozen_segments]
    assert asked and all(not s.turns[0].completion.token_ids for one in asked for s in one.frozen_segments)


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["roles.clark.policy=oracle"], "no environment has a sub-agent or player 'clark': .* has clerk"),
        (["roles.clerk.policy=orcle"], "unknown policy 'orcle'; did you mean 'oracle'"),
        (["roles.clerk.train_every=2"], "roles.clerk: nobody plays it; set roles.clerk.policy"),
        (["roles.clerk.policy=oracle", "roles.clerk.trained=true"], "policy=oracle is never trained"),
        (["roles.clerk.policy=oracle", "roles.clerk.optimizer.lr=1"], "optimizer is of training, and the role is fr"),
        (["roles.clerk.trained=true", "roles.clerk.optimizer.lrr=1"], "unknown key 'roles.clerk.optimizer.lrr'; did"),
        (["roles.clerk.polcy=oracle"], "unknown key 'roles.clerk.polcy'; did you mean 'roles.clerk.policy'"),
        (["roles.clerk.policy=self:0"], "'self:0' needs the number of steps between versions"),
        (["roles.clerk.policy=self:2", "pipeline.mode=async"], "set pipeline.mode=sync"),
        (
            ["roles.a.policy=oracle", 'roles.a.plays=["clerk"]', "roles.clerk.trained=true"],
            "clerk is played by roles.a",
        ),
        (["critic.by_role=true"], "critic.by_role=true needs a trained role"),
        (["roles.clerk.trained=true", "critic.by_role=true"], "and credit by values before turns or tokens"),
        (
            ["roles.clerk.trained=true", "roles.clerk.model.path=smollm2", "credit.estimator=turn_gae"],
            "critic would read another model's tokens; set critic.by_role=true",
        ),
        (["roles.policy.policy=oracle"], "only train_every and train_at are set here"),
        (["roles.clerk.trained=true", "roles.clerk.train_every=2", "roles.clerk.train_at=2"], "must be below train_ev"),
        (["roles.clerk.trained=true", *SERVED], "roles.clerk.engine.urls: .* servers of its own"),
        (["roles.clerk.policy=vllm:http://127.0.0.1:1?model=smollm2", *SERVED], "roles.clerk.policy: .* of its own"),
        (["roles.clerk.trained=true", "roles.clerk.sampling.temperature=0.5"], "differs from the run's 1"),
        (
            ["roles.clerk.policy=oracle", "harness.name=claude_code", "harness.options.folder=/x"],
            "leave harness.name empty",
        ),
    ],
)
def test_a_wrong_role_is_refused_by_the_dry_run(overrides: list[str], said: str) -> None:
    with pytest.raises(AgentGymError, match=said):
        dry_run(asking(*overrides))


def test_roles_that_leave_the_policy_no_player_are_refused() -> None:
    names = ['roles.a.plays=["player 1"]', 'roles.b.plays=["player 2"]']
    with pytest.raises(AgentGymError, match="leave one to the policy"):
        dry_run(kuhn(*names, "roles.a.policy=random", "roles.b.policy=random"))


@pytest.mark.slow
@pytest.mark.parametrize("rollouts", ["auto", "first"])
def test_two_ranks_meet_the_past_as_one_does(rollouts: str, dealt: list[str], tmp_path: Path, warm_python: str) -> None:
    """A league over two ranks draws the versions of one rank, also when it is resumed."""
    past = "roles.opponent.policy=league:1"
    config = kuhn(*dealt, past, "group.group_size=4", "optimizer.lr=1e-4", f"ranks.rollouts={rollouts}")
    train(config, tmp_path / "one")
    two = tmp_path / "two"
    two.mkdir()
    save_config(config, two / "config.json")
    forked(warm_python, 2, "-c", RESUMED, str(two))
    shutil.rmtree(two / "checkpoints" / "rl-000003")
    forked(warm_python, 2, "-c", RESUMED, str(two))
    for expected, got in zip(rows(tmp_path / "one"), rows(two), strict=True):
        for name in ("role/opponent/version", "trained_tokens", "status/completed"):
            assert got[name] == expected[name], name
        assert got["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    one = weights(tmp_path / "one")
    for key, tensor in weights(two).items():
        torch.testing.assert_close(tensor, one[key], atol=1e-4, rtol=0)
    versions = [
        load_file(folder / "past" / "opponent" / "step-000002.safetensors") for folder in (tmp_path / "one", two)
    ]
    for key, tensor in versions[0].items():
        torch.testing.assert_close(versions[1][key], tensor, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_two_ranks_train_two_roles_as_one_does(warm: Path, tmp_path: Path, warm_python: str) -> None:
    """Each model is cut up over the ranks; a run that stops goes on to the same numbers."""
    settings = [f"model.path={warm}", "sft.num_demos=0", "roles.clerk.trained=true"]
    config = apply_overrides(asking(), settings)
    train(config, tmp_path / "one")
    two = tmp_path / "two"
    two.mkdir()
    save_config(config, two / "config.json")
    forked(warm_python, 2, "-c", RESUMED, str(two))
    shutil.rmtree(two / "checkpoints" / "rl-000002")
    forked(warm_python, 2, "-c", RESUMED, str(two))
    for expected, got in zip(rows(tmp_path / "one"), rows(two), strict=True):
        for name in ("loss", "trained_tokens", "role/clerk/loss", "role/clerk/trained_tokens", "role/clerk/grad_norm"):
            assert got[name] == pytest.approx(expected[name], abs=1e-4), name
    for role in ("", "clerk"):
        one = weights(tmp_path / "one", role)
        for key, tensor in weights(two, role).items():
            torch.testing.assert_close(tensor, one[key], atol=1e-4, rtol=0)


def test_the_plan_counts_the_models_of_roles() -> None:
    def of_roles(*overrides: str) -> int:
        return dry_run(asking(*overrides)).memory.roles

    assert of_roles() == of_roles("roles.clerk.policy=oracle") == 0
    assert of_roles("roles.clerk.trained=true") > of_roles("roles.clerk.policy=self:5") > 0
