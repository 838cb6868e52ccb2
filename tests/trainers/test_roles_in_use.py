"""Runs with roles in later commands: evaluations of them, branches, demonstrations, and the best model."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from testkit import TESTKIT
from testkit.fake_openai import FakeOpenAI, completion
from typer.testing import CliRunner

from agentgym import cross_play, evaluate
from agentgym.api.run_settings import as_the_run
from agentgym.cli.main import app
from agentgym.env.env import Env
from agentgym.errors import AgentGymError, RunStoppedError, UsageError
from agentgym.evals.episodes import read_groups
from agentgym.evals.policies import named_policy
from agentgym.registry import make
from agentgym.rollout.agent import Agent, Decision
from agentgym.rollout.match import play_task
from agentgym.rollout.record import read_records, record_path
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.roles import RoleAgents
from agentgym.trainers.branches import branch
from agentgym.trainers.config.overrides import apply_overrides, load_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.planning.dry_run import dry_run
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.sft.recorded import of_policy, read_run
from agentgym.trainers.train import train
from agentgym.types import Observation

ENV = f"{TESTKIT / 'asking_env.py'}:Manager-v0"
GAME = "agentgym/KuhnPoker-v0"


def kuhn(*overrides: str) -> TrainConfig:
    small = ("groups_per_step=2", "sft.num_demos=200", "model.num_layers=1", "eval.num_episodes=4", "num_steps=2")
    return apply_overrides(load_recipe("kuhn"), [*small, "checkpoint_every=1", *overrides])


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the overrides of a run that begins with a model which knows the game's rules."""
    run_dir = tmp_path_factory.mktemp("kuhn") / "run"
    train(kuhn("num_steps=0"), run_dir)
    return [f"model.path={run_dir / 'model'}", "sft.num_demos=0"]


@pytest.fixture(scope="module")
def both(dealt: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that trained a second model as player 2 and kept its best models."""
    run_dir = tmp_path_factory.mktemp("both") / "run"
    learns = ("roles.player_2.trained=true", "roles.player_2.optimizer.lr=1e-3", "roles.player_2.loss.regularisers=[]")
    train(kuhn(*dealt, *learns, "eval.every=1", "eval.keep_best=true"), run_dir)
    return run_dir


# ------------------------------------------------------------------------------------------------------- episodes


class _Short:
    """An agent whose context is full after its first turn."""

    def __init__(self, inner: Agent) -> None:
        self._inner, self._num = inner, 0

    def begin(self, *given: object) -> None:
        self._inner.begin(*given)  # type: ignore[arg-type]

    async def decide(self) -> Decision | None:
        self._num += 1
        return await self._inner.decide() if self._num == 1 else None

    def observe(self, replies: Observation, played: object = None) -> None:
        self._inner.observe(replies)

    async def end(self) -> None:
        await self._inner.end()


def test_a_players_segment_names_its_role_also_if_it_leaves_the_game() -> None:
    """Otherwise the policy would be trained on the tokens of another model."""
    first = named_policy("oracle")

    def short(env: Env, seed: int) -> Agent:
        return _Short(first(env, seed))

    env = make("agentgym/TicTacToe-v0", opponent="self")
    other = RoleAgents(role="other", make_agent=short, is_trained=True)
    request = RolloutRequest(task=env.tasks("train")[0], make_agent=first, roles={"player_1": other})
    played = asyncio.run(play_task(env, request))
    assert [(one.player, {segment.role for segment in one.segments}) for one in played] == [(0, {"other"}), (1, {""})]
    assert played[0].is_forfeit and played[0].reward is not None and played[0].reward <= 0


# ---------------------------------------------------------------------------------------------------- evaluations


def test_roles_without_a_part_in_the_evaluation_stay_out_of_it(both: Path, tmp_path: Path) -> None:
    """The run trains against its role, and is evaluated against the game's own player."""
    done = evaluate(GAME, str(both), episodes=2, run_dir=tmp_path / "own")
    assert len(done.trajectories) == 2 and _roles(tmp_path / "own") == {}
    evaluate(GAME, str(both), kwargs={"opponent": "self"}, episodes=2, run_dir=tmp_path / "game")
    assert _roles(tmp_path / "game") == {"player_2": str(both / "roles" / "player_2" / "model")}
    with pytest.raises(UsageError, match=r"roles\.player_2: .* has no sub-agent or player of that name"):
        evaluate(GAME, str(both), roles={"player_2": "random"}, run_dir=tmp_path / "refused")


def test_the_best_model_plays_with_the_roles_of_its_step(both: Path) -> None:
    step = json.loads((both / "best.json").read_text())["step"]
    best, last = (
        load_file(both / "roles" / "player_2" / name / "model.safetensors")["model.norm.weight"]
        for name in ("best", "model")
    )
    assert (best == last).all() == (step == 2)
    for name, policy in ((str(both), str(both / "best")), (GAME, str(both / "best"))):
        plan = as_the_run(name, policy, {"kwargs": {"opponent": "self"}}, lambda line: None)
        assert plan["roles"] == {"player_2": str(both / "roles" / "player_2" / "best")}


def _roles(run_dir: Path) -> object:
    return json.loads((run_dir / "config.json").read_text())["eval"]["roles"]


def test_a_limit_of_money_needs_the_price_of_each_endpoint(tmp_path: Path) -> None:
    """The endpoint of a part spends as the policy does."""
    server = FakeOpenAI(lambda body: completion(None, ("hand", '{"number": 1}'), prompt_tokens=9, completion_tokens=1))
    other = f"openai:{server.url}?model=only"
    try:
        with pytest.raises(UsageError, match=r"--max-cost needs the price of openai:"):
            evaluate(ENV, "oracle", roles={"clerk": other}, max_cost=1.0, run_dir=tmp_path / "unpriced")
        with pytest.raises(RunStoppedError, match="the budget of --max-cost"):
            evaluate(
                ENV, "oracle", roles={"clerk": other}, max_cost=1e-9, prices="1,2", episodes=4, run_dir=tmp_path / "run"
            )
    finally:
        server.close()


def test_a_limit_of_money_stops_at_a_role_without_token_counts(tmp_path: Path) -> None:
    """As at an evaluated endpoint; else the role would spend beyond the limit."""
    server = FakeOpenAI(lambda body: completion(None, ("hand", '{"number": 1}')) | {"usage": None})
    other = f"openai:{server.url}?model=only"
    try:
        with pytest.raises(RunStoppedError, match=r"cannot be enforced: openai:.*model=only reports no token counts"):
            evaluate(
                ENV, "oracle", roles={"clerk": other}, max_cost=1.0, prices="1,2", episodes=4, run_dir=tmp_path / "run"
            )
        assert evaluate(ENV, "oracle", roles={"clerk": other}, prices="1,2", episodes=2, run_dir=tmp_path / "free")
    finally:
        server.close()


# ------------------------------------------------------------------------------------------------ demonstrations


def test_recorded_turns_of_other_models_are_no_demonstrations(both: Path) -> None:
    """A model of another role may have another tokenizer, and the policy does not play a frozen role's part."""
    env = make(GAME, opponent="self")
    played = [one for one in read_run(str(both)).trajectories if one.segments]
    of_game = [one for one in played if one.player == 1]
    assert of_game and all(of_policy(one, env, ["player_2"]) is None for one in of_game)
    assert all(of_policy(one, env, []) == one for one in of_game), "its text is learnt if nobody else plays it"


def test_recorded_turns_of_a_roles_sub_agent_are_left_out(tmp_path: Path) -> None:
    evaluate(ENV, "oracle", episodes=2, run_dir=tmp_path / "run")
    (one, *_) = [one for group in read_groups(tmp_path / "run") for one in group.trajectories]
    env = make(ENV)
    kept = of_policy(one, env, ["clerk"])
    assert (
        kept is not None
        and {s.agent for s in one.segments} == {"", "clerk"}
        and {s.agent for s in kept.segments} == {""}
    )
    assert of_policy(one, env, []) == one


def test_role_is_another_way_to_name_a_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["eval", ENV, "--policy", "oracle", "--episodes", "2", "--run-dir", "run"]
    done = CliRunner().invoke(app, [*words, "--role", "clerk=random"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run" / "config.json").read_text())["eval"]["roles"] == {"clerk": "random"}
    for wrong, said in ((["--role", "clerk"], "PART=POLICY"), (["--role", "clark=random"], "clark"),
                        (["--role", "clerk=random", "roles.clerk=oracle"], "clerk")):  # fmt: skip
        assert said in CliRunner().invoke(app, [*words[:-2], *wrong]).stderr


# ------------------------------------------------------------------------------------------------------- branches


def test_a_branch_takes_the_versions_of_the_past_along(dealt: list[str], tmp_path: Path) -> None:
    train(kuhn(*dealt, "roles.opponent.policy=league:1"), tmp_path / "run")
    config = apply_overrides(load_config(tmp_path / "run" / "config.json"), ["optimizer.lr=1e-4", "num_steps=4"])
    branch(tmp_path / "run", tmp_path / "branch", config)
    train(config, tmp_path / "branch", resume=True)
    kept = sorted(path.name for path in (tmp_path / "branch" / "past" / "opponent").iterdir())
    assert kept == [f"step-{step:06d}.safetensors" for step in range(5)]


def test_a_branch_changes_a_roles_optimizer_and_not_its_model(both: Path, tmp_path: Path) -> None:
    before = load_config(both / "config.json")
    wanted = ["roles.player_2.optimizer.lr=1e-5", "roles.player_2.train_every=2", "num_steps=3"]
    config = apply_overrides(before, wanted)
    branch(both, tmp_path / "branch", config)
    train(config, tmp_path / "branch", resume=True)
    kl = 'roles.player_2.loss.regularisers=[{"kind": "kl"}]'
    with pytest.raises(AgentGymError, match=r"roles\.player_2\.loss\.regularisers: .* as a reference"):
        branch(both, tmp_path / "kl", apply_overrides(before, [kl]))
    for fixed in ("roles.player_2.optimizer.kind=muon", "roles.player_2.model.path=/x"):
        with pytest.raises(AgentGymError, match=fixed.partition("=")[0]):
            branch(both, tmp_path / "refused", apply_overrides(before, [fixed]))


def test_a_branch_goes_on_beside_another_frozen_policy(dealt: list[str], tmp_path: Path) -> None:
    train(kuhn(*dealt, "roles.opponent.policy=random"), tmp_path / "run")
    before = load_config(tmp_path / "run" / "config.json")
    model = dealt[0].removeprefix("model.path=")
    config = apply_overrides(before, [f"roles.opponent.policy={model}", "num_steps=3"])
    branch(tmp_path / "run", tmp_path / "branch", config)
    train(config, tmp_path / "branch", resume=True)
    played = [one for record in read_records(record_path(tmp_path / "branch", 2)) for one in record.group.trajectories]
    turns = [turn for one in played for segment in one.frozen_segments for turn in segment.turns]
    assert turns and all(turn.completion.token_ids for turn in turns), "a model played; a script has no tokens"
    for refused in ("roles.opponent.policy=league:1", "roles.other.policy=random"):
        with pytest.raises(AgentGymError, match=r"keeps roles\.o"):
            branch(tmp_path / "run", tmp_path / "refused", apply_overrides(before, [refused]))


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["policy=oracle", "sampling.temperature=0"], r"sampling\.temperature changes nothing of oracle"),
        (["policy=MODEL", "sampling.top_p=0.5"], r"sampling\.top_p changes nothing of .* takes temperature"),
        (["policy=MODEL", "sampling.temperature=hot"], r"roles\.player_2\.sampling\.temperature"),
        (["policy=MODEL", "model.max_context_tokens=-4"], "max_context_tokens must be at least 0, got -4"),
        (["policy=MODEL", "model.chat.codek=x"], r"unknown key 'chat\.codek'; did you mean 'chat\.codec'"),
        (["policy=openai:http://127.0.0.1:1/v1", "model.max_context_tokens=64"], "takes no such setting"),
        (["policy=self:2", "model.max_context_tokens=64"], r"changes nothing of self:2, which takes no such setting"),
        (["policy=self:2", "sampling.temprature=1"], r"sampling\.temprature changes nothing of self:2"),
        (["policy=oracle", 'plays=["player 2", "player_2"]'], "plays names player_2 twice"),
    ],
)
def test_settings_of_a_frozen_role_are_read_or_refused(settings: list[str], said: str, dealt: list[str]) -> None:
    model = dealt[0].partition("=")[2]
    overrides = [f"roles.player_2.{setting}".replace("MODEL", model) for setting in settings]
    with pytest.raises(AgentGymError, match=said):
        dry_run(kuhn(*dealt, *overrides))


def test_settings_that_a_frozen_model_reads_are_taken(dealt: list[str]) -> None:
    model = dealt[0].partition("=")[2]
    taken = ("sampling.temperature=0", "model.max_context_tokens=64", "model.chat.keeps_history=true")
    dry_run(kuhn(*dealt, f"roles.player_2.policy={model}", *(f"roles.player_2.{one}" for one in taken)))


# ------------------------------------------------------------------------------------------------ earlier versions


def test_versions_of_a_league_play_each_other(dealt: list[str], tmp_path: Path) -> None:
    """Each version has the weights that the run had, and the last one is the run's model."""
    run_dir = tmp_path / "run"
    train(kuhn(*dealt, "roles.opponent.policy=league:1"), run_dir)
    kept = load_file(run_dir / "past" / "opponent" / "step-000001.safetensors")
    version = load_file(Path(local_model(f"{run_dir}@1")) / "model.safetensors")
    assert all(torch.equal(kept[key], version[key]) for key in version)
    assert (Path(local_model(f"{run_dir}@1")) / "tokenizer.json").is_file()
    last, trained = (load_file(Path(local_model(source)) / "model.safetensors") for source in (f"{run_dir}@2", run_dir))
    assert all(torch.equal(last[key], trained[key]) for key in trained)

    found = cross_play(str(run_dir), [], episodes=3, run_dir=tmp_path / "cross")
    assert {one.policy for one in found.ratings} == {f"{run_dir}@{step}" for step in range(3)} | {str(run_dir)}
    assert len(found.pairings) == 12 and {one.num_failed for one in found.pairings} == {0}
    plan = as_the_run(f"{run_dir}@1", f"{run_dir}@1", {"kwargs": {"opponent": "self"}}, lambda line: None)
    assert plan["roles"] == {"opponent": f"{run_dir}@1"}  # of the past: the version that is evaluated

    with pytest.raises(UsageError, match="no version 7: it has kept those of the steps 0, 1, 2"):
        local_model(f"{run_dir}@7")


def test_versions_with_adapters_are_merged_into_their_model(dealt: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(kuhn(*dealt, "model.lora.rank=4", "optimizer.lr=1e-2", "roles.opponent.policy=league:1"), run_dir)
    first, last = (load_file(Path(local_model(f"{run_dir}@{step}")) / "model.safetensors") for step in (0, 2))
    base, trained = (
        load_file(Path(of) / "model.safetensors") for of in (dealt[0].partition("=")[2], run_dir / "model")
    )
    assert first.keys() == base.keys() and all(torch.equal(first[key], base[key]) for key in base), "new adapters are 0"
    assert all(torch.equal(last[key], trained[key]) for key in trained)
    assert any(not torch.equal(first[key], last[key]) for key in base)
    shutil.rmtree(run_dir / "adapters")
    with pytest.raises(UsageError, match=r"holds adapters .* over weights that the run has not kept"):
        local_model(f"{run_dir}@1")


# ------------------------------------------------------------------------------------------------- three players


def test_a_game_of_three_has_a_frozen_a_trained_and_a_past_player(tmp_path: Path) -> None:
    game = f"{TESTKIT / 'three_players.py'}:Nim-v0"
    small = ("num_steps=2", "groups_per_step=2", "sft.num_demos=200", "sft.noise=1", "eval.num_episodes=2")
    self_play = (f"env.id={game}", "env.kwargs.opponent=self", "eval.kwargs.opponent=random", "credit.estimator=rae")
    base = apply_overrides(load_recipe("tiny"), [*small, *self_play, "model.num_layers=1", "group.group_size=4"])
    train(apply_overrides(base, ["roles.bob.policy=random", "roles.cy.trained=true"]), tmp_path / "run")
    groups = [one.group for step in (0, 1) for one in read_records(record_path(tmp_path / "run", step))]
    played = [one for group in groups for one in group.trajectories]
    assert {segment.role for one in played for segment in one.segments} == {"", "cy"}
    assert {segment.agent for one in played for segment in one.frozen_segments} == {"bob"}
    train(apply_overrides(base, ["roles.bob.policy=random", "roles.cy.policy=league:1"]), tmp_path / "league")

    said = "beside bob the policy plays several players"
    with pytest.raises(UsageError, match=said):
        evaluate(game, "random", kwargs={"opponent": "self"}, roles={"bob": "random"}, run_dir=tmp_path / "two")
    against = evaluate(game, "random", kwargs={"opponent": "self"}, roles={"opponent": "random"}, episodes=9,
                       run_dir=tmp_path / "eval")  # fmt: skip
    assert {tuple(sorted({s.agent for s in one.frozen_segments})) for one in against.trajectories} == {
        ("bob", "cy"), ("ann", "cy"), ("ann", "bob"),
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"two players; .* has ann, bob, cy"):
        cross_play(game, ["random", "idle"], run_dir=tmp_path / "cross")
