"""Several environments in one run: credit, metrics and evaluation of each, and a run that can be resumed."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.counting_runs import from_scratch as single
from testkit.counting_runs import token_ages, weights
from typer.testing import CliRunner

import agentgym
from agentgym.api.run_settings import as_the_run, run_settings
from agentgym.cli.main import app
from agentgym.credit.compose import assign_credit
from agentgym.errors import ConfigError, UnknownNameError, UsageError
from agentgym.evals.compare import open_evaluations
from agentgym.evals.episodes import read_rows
from agentgym.report import write_report
from agentgym.rollout.mixture import MixtureConfig
from agentgym.rollout.record import GroupRecord, read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import MixedEnv, TrainConfig
from agentgym.trainers.phases.demonstrations import num_demos
from agentgym.trainers.planning.dry_run import dry_run
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

FILE = Path(__file__).parent.parent / "shared" / "testkit" / "two_worlds.py"
ADDING, PICKING = f"{FILE}:Adding-v0", f"{FILE}:Picking-v0"


def mixed(*overrides: str, adding: Any = None, picking: Any = None, **changes: Any) -> TrainConfig:
    envs = (
        MixedEnv(id=ADDING, weight=2.0, **(adding or {})),
        MixedEnv(**{"id": PICKING, "name": "colours", "credit": {"estimator": "rloo"}, **(picking or {})}),
    )
    return apply_overrides(single(envs=envs, num_steps=4, **changes), overrides)


def records(run_dir: Path) -> list[GroupRecord]:
    return [record for step in recorded_steps(run_dir) for record in read_records(record_path(run_dir, step))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "mixed"
    train(mixed(), run_dir)
    return run_dir


# ------------------------------------------------------------------------------------------------------ what is played


def test_each_step_has_each_environments_share(finished: Path) -> None:
    names = [[record.group.env_name for record in read_records(record_path(finished, step))] for step in range(4)]
    assert [Counter(step) for step in names] == [{"adding": 2, "colours": 1}] * 4
    assert [record.group.ordinal for record in records(finished)] == list(range(12))
    for name in ("adding", "colours"):
        tasks = [record.group.task.id for record in records(finished) if record.group.env_name == name]
        assert len(set(tasks)) == len(tasks), "each task once"


def test_credit_is_that_of_the_environments_own_components(finished: Path) -> None:
    own = {"adding": mixed().credit, "colours": replace(mixed().credit, estimator="rloo")}
    assert mixed().by_env["colours"].credit == own["colours"]
    some = 0
    for step in recorded_steps(finished):
        for name, credit in own.items():
            found = [one for one in read_records(record_path(finished, step)) if one.group.env_name == name]
            for record, expected in zip(found, assign_credit([one.group for one in found], credit), strict=True):
                advantages = [turn.advantage for member in record.credit for turn in member]
                assert advantages == pytest.approx([turn.advantage for member in expected for turn in member])
                some += any(advantages)
    assert some


def test_metrics_and_evaluations_are_those_of_each_environment(finished: Path) -> None:
    rows = read_json_lines(finished / "metrics.jsonl")
    for step, row in enumerate(row for row in rows if row["phase"] == "rl"):
        assert (row["adding/num_groups"], row["colours/num_groups"]) == (2.0, 1.0)
        for name in ("adding", "colours"):
            valid = [
                member
                for record in read_records(record_path(finished, step))
                if record.group.env_name == name
                for member in record.group.valid
            ]
            assert row[f"{name}/success"] == pytest.approx(sum(bool(one.success) for one in valid) / len(valid))
        assert row["sampled_tokens"] == row["adding/sampled_tokens"] + row["colours/sampled_tokens"]
        assert "adding/credit/zero_advantage_share" in row and "credit/zero_advantage_share" not in row
    evals = [row for row in rows if row["phase"] == "eval"]
    assert [row["step"] for row in evals] == [0, 4]
    for row in evals:
        assert row["success"] == pytest.approx((row["adding/success"] + row["colours/success"]) / 2)
    folders = sorted(path.name for path in (finished / "eval").iterdir())
    assert folders == ["after-adding", "after-colours", "before-adding", "before-colours"]
    summaries = [json.loads((finished / "eval" / name / "summary.json").read_text()) for name in folders]
    assert [one["suite_or_env"].rpartition(":")[2] for one in summaries] == ["Adding-v0", "Picking-v0"] * 2


def test_demonstrations_are_shared_by_weight() -> None:
    assert num_demos(mixed()) == [213, 107]
    assert num_demos(mixed(picking={"sft": {"num_demos": 40}})) == [213, 40]
    assert num_demos(mixed(picking={"weight": 0.0, "final_weight": 2.0})) == [160, 160]
    assert num_demos(single()) == [320]


# ------------------------------------------------------------------------------------------------------ what it equals


def test_a_mixture_of_one_environment_is_the_run_without_a_mixture(tmp_path: Path) -> None:
    alone = single(num_steps=3, checkpoint_every=3)
    train(alone, tmp_path / "alone")
    train(replace(alone, envs=(MixedEnv(id=alone.env.id),)), tmp_path / "mixed")
    assert weights(tmp_path / "mixed") == weights(tmp_path / "alone")


@pytest.mark.parametrize("by", ["weight", "progress"])
def test_a_resumed_mixture_ends_in_the_same_weights(by: Any, tmp_path: Path) -> None:
    """SPO remembers every task's success by its key, which both environments use."""
    spo = {"credit": {"estimator": "spo"}, "group": {"group_size": 1, "min_valid": 1}}
    settings = mixed(mixture=MixtureConfig(by=by), picking=spo, checkpoint_every=1)
    train(settings, tmp_path / "run")
    expected, held = weights(tmp_path / "run"), read_checkpoint(tmp_path / "run", 4)
    assert held["credit"]["colours"]["memory"] and held["credit"]["adding"] != held["credit"]["colours"]
    drop_checkpoint(tmp_path / "run", 4)
    (tmp_path / "run" / "model" / "model.safetensors").unlink()
    train(settings, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected
    again = read_checkpoint(tmp_path / "run", 4)
    assert again["plan"] == held["plan"] and again["credit"] == held["credit"]
    assert all(torch.equal(value, again["model"][name]) for name, value in held["model"].items())


def test_async_mode_trains_a_mixture_too(tmp_path: Path) -> None:
    train(mixed("pipeline.mode=async"), tmp_path / "run")
    found = records(tmp_path / "run")
    assert sorted(record.group.ordinal for record in found) == list(range(12))
    assert Counter(record.group.env_name for record in found) == {"adding": 8, "colours": 4}
    assert token_ages(tmp_path / "run") <= {0, 1}
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(math.isfinite(row["adding/success"]) for row in rows if row["adding/num_groups"])


# ----------------------------------------------------------------------------------------------------- what is refused


def refused(match: str, *overrides: str, **changes: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        mixed(*overrides, **changes)


def test_what_cannot_be_is_refused_with_the_place() -> None:
    refused("'adding' must|is the name of two environments", picking={"name": "adding"})
    refused(r"envs: all weights are 0 at the last step", adding={"final_weight": 0}, picking={"final_weight": 0})
    refused(r"envs\.colours\.sampling\.temperature=0\.5 differs", picking={"sampling": {"temperature": 0.5}})
    refused(r"envs\.colours\.group\.num_envs", picking={"group": {"num_envs": 3}})
    refused(r"envs\.colours\.sft\.batch_size", picking={"sft": {"batch_size": 3}})
    refused(r"envs\.colours\.credit\.gamma.*got 'x'", picking={"credit": {"gamma": "x"}})
    refused(r"^envs\.colours\.weight must be at least 0, got -1$", picking={"weight": -1})
    refused(r"name 'a/b'", picking={"name": "a/b"})
    with pytest.raises(
        UnknownNameError, match=r"envs\.colours\.credit\.gama.*did you mean 'envs\.colours\.credit\.gamma'"
    ):
        mixed(picking={"credit": {"gama": 0.9}})
    with pytest.raises(ConfigError, match="gigop"):
        mixed(picking={"credit": {"estimator": "gigop"}})


def test_a_configuration_from_the_command_line() -> None:
    text = json.dumps([{"id": ADDING, "weight": 3}, {"id": PICKING, "kwargs": {}, "credit": {"estimator": "grpo"}}])
    made = apply_overrides(load_recipe("tiny"), [f"envs={text}", "mixture.by=progress"])
    assert [env.name for env in made.envs] == ["adding", "picking"]
    assert made.by_env["picking"].credit.estimator == "grpo" and made.by_env["adding"].env.id == ADDING
    assert dry_run(made).env == "Adding-v0, Picking-v0"


# ------------------------------------------------------------------------------------------------------- what reads it


def test_a_run_is_evaluated_in_the_environment_that_is_named(finished: Path) -> None:
    settings = run_settings(str(finished), PICKING)
    assert settings is not None and settings.plan["env"] == PICKING and settings.others == (ADDING,)
    found = {(one.label.rpartition(":")[2], one.policy.split()[0]) for one in open_evaluations(finished).values()}
    assert found == {
        (f"{env}, {when}", "tiny") for env in ("Adding-v0", "Picking-v0") for when in ("before RL", "after RL")
    }


def test_the_report_shows_each_environment_from_before_to_after(finished: Path) -> None:
    page = write_report(finished).read_text()
    assert "Adding-v0" in page and "Picking-v0" in page
    headlines = page.split('<div class="headline">')[1:]
    assert [re.findall(r'class="env">(\w+)<', headline) for headline in headlines] == [["adding"], ["colours"]]
    assert all(re.findall(r"success (before|after)<", headline) == ["before", "after"] for headline in headlines)
    assert "adding: success" in page and "colours: success" in page


def test_eval_of_a_mixture_asks_which(finished: Path) -> None:
    with pytest.raises(UsageError, match=r"trained on several environments .*--policy"):
        as_the_run(str(finished), str(finished), {}, print)


def test_episodes_of_each_environment_are_exported_with_its_tools(finished: Path, tmp_path: Path) -> None:
    for name in ("adding", "colours"):
        out = tmp_path / f"{name}.jsonl"  # in a process of its own, where the file of the environments is not loaded
        command = [sys.executable, "-m", "agentgym", "export", str(finished), "--evaluation", f"after-{name}", "-o"]
        done = subprocess.run([*command, str(out)], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (row, *_) = map(json.loads, out.read_text().splitlines())
        assert row["env_id"] == {"adding": "Adding-v0", "colours": "Picking-v0"}[name] and row["tools"]


def test_python_evaluates_as_the_run_did(finished: Path, tmp_path: Path) -> None:
    found = agentgym.evaluate(PICKING, str(finished), run_dir=tmp_path / "eval")
    assert [row["success"] for row in found.rows] == [
        row["success"] for row in read_rows(finished / "eval" / "after-colours")
    ]


def test_one_environments_credit_is_computed_again_from_the_record(finished: Path) -> None:
    found = CliRunner().invoke(app, ["credit", str(finished), "--env", "colours", "--estimator", "rloo", "--json"])
    assert json.loads(found.stdout)["num_groups"] == 4
    for wrong in ([], ["--env", "colour"]):
        refused = CliRunner().invoke(app, ["credit", str(finished), *wrong, "--json"])
        assert refused.exit_code == 2 and "--env adding|colours" in refused.stdout


def test_several_games_by_self_play_have_averages_of_their_own(tmp_path: Path) -> None:
    """SPIRAL on two games: role-conditioned averages by game and by role."""
    envs = [
        {"id": f"agentgym/{game}-v0", "kwargs": {"opponent": "self"}, "eval": {"kwargs": {"opponent": "random"}}}
        for game in ("TicTacToe", "KuhnPoker")
    ]
    made = apply_overrides(
        single(num_steps=3, groups_per_step=4),
        [
            f"envs={json.dumps(envs)}",
            "credit.estimator=rae",
            "model.max_context_tokens=400",
            "sft.num_demos=0",
        ],
    )
    train(made, tmp_path / "run")
    for record in records(tmp_path / "run"):
        players = Counter(member.player for member in record.group.trajectories)
        assert {*players} == {0, 1} and players[0] == players[1]
    memory = read_checkpoint(tmp_path / "run", 3)["credit"]
    assert set(memory) == {"tictactoe", "kuhnpoker"}
    averages = [memory[name]["memory"]["rae"] for name in memory]
    assert all(average and {*average} <= {"0", "1"} for average in averages), "by role"
    assert averages[0] != averages[1], "by game"
