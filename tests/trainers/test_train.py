"""The loop as a whole: it trains, keeps a record it can be repeated from, and survives kill -9."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import shutil
import sys
import time
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from testkit.checkpoints import read_checkpoint
from testkit.counting_runs import ENV_FILE, NUM_STEPS, token_ages, trained_ordinals, weights
from testkit.counting_runs import from_scratch as config
from testkit.killed_runs import resume, start
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from agentgym.check.chaos import Chaos
from agentgym.credit.compose import assign_credit, credit_groups
from agentgym.credit.recredit import CreditTally, recredit
from agentgym.env.env import Env
from agentgym.errors import ConfigError, CorruptDataError, UsageError
from agentgym.rollout.folder_lock import locked
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.rollout.recredit import (
    plan_recredit,
    read_batches,
    read_credit_settings,
    read_held_columns,
    select_steps,
)
from agentgym.rollout.request import EpisodeLimits
from agentgym.trainers.checkpoint import checkpoint_path, load_latest_checkpoint
from agentgym.trainers.config.overrides import apply_overrides, save_config
from agentgym.trainers.config.train import EvalConfig
from agentgym.trainers.data.samples import FilteredGroup, build_samples, filter_groups
from agentgym.trainers.distributed.hashes import HASHES
from agentgym.trainers.phases.optimizer_step import make_optimizer
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.reporting.metrics import MetricsLog
from agentgym.trainers.run.run import Run
from agentgym.trainers.train import train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    train(config(), run_dir)
    return run_dir


# -------------------------------------------------------------------------------------------------------- the record


def test_every_task_is_trained_exactly_once(finished: Path) -> None:
    ordinals = [r.group.ordinal for step in recorded_steps(finished) for r in read_records(record_path(finished, step))]
    assert ordinals == list(range(NUM_STEPS * 3))


def test_what_is_logged_from_the_first_step(finished: Path) -> None:
    rows = [row for row in read_json_lines(finished / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in rows] == list(range(1, NUM_STEPS + 1))
    expected = {"logprob_gap_max", "entropy", "clip_fraction", "anchor_share", "anchor_size", "tokens_per_s",
                "status/completed", "status/env_error", "time/rollout_s", "time/train_s"}  # fmt: skip
    assert expected <= set(rows[0])
    assert any(row["trained_tokens"] for row in rows)
    assert max(row["logprob_gap_max"] for row in rows if row["trained_tokens"]) < 1e-4
    phases = [row["phase"] for row in read_json_lines(finished / "metrics.jsonl")]
    assert (phases[0], phases.count("eval"), phases[-1]) == ("sft", 2, "eval")


def test_evaluations_on_the_way_give_a_curve_and_change_nothing(finished: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(config(eval=EvalConfig(num_episodes=6, every=2)), run_dir)
    rows = read_json_lines(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows if row["phase"] == "eval"] == [0, 2, 4, 6]
    assert sorted(path.name for path in (run_dir / "eval").iterdir()) == [
        "after", "before", "step-000002", "step-000004",
    ]  # fmt: skip
    assert weights(run_dir) == weights(finished)


def test_a_resumed_run_keeps_the_evaluations_it_will_not_repeat(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.log("sft", 1, {"loss": 1.0})
        for step in range(5):
            log.log("eval", step, {"success": 0.0})
            log.log("rl", step + 1, {"loss": 1.0})

    def left(phase: str, step: int) -> list[tuple[str, int]]:
        log.forget_after(phase, step)
        return [(row["phase"], row["step"]) for row in read_json_lines(tmp_path / "metrics.jsonl")]

    assert left("rl", 2) == [("sft", 1), ("eval", 0), ("rl", 1), ("eval", 1), ("rl", 2)]
    assert left("rl", 0) == [("sft", 1), ("eval", 0)]
    assert left("sft", 0) == []


def test_a_folder_is_a_run_of_its_own_on_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders of one name had the same id, so that their curves were mixed."""
    wandb: Any = Mock(Error=type("Error", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with MetricsLog(tmp_path, "mine") as log:
        log.log("rl", 1, {"loss": 1.0})
    run = wandb.init.return_value
    run.define_metric.assert_any_call("rl/*", step_metric="rl/step")
    run.log.assert_called_once_with({"rl/loss": 1.0, "rl/step": 1})

    (tmp_path / "wandb" / "offline-run-20261128_071645-a-b1").mkdir(parents=True)
    MetricsLog(tmp_path, "mine").__enter__().__exit__(KeyboardInterrupt, None, None)
    assert [call.kwargs["id"] for call in wandb.init.call_args_list] == [None, "a-b1"]
    assert [call.kwargs["exit_code"] for call in run.finish.call_args_list] == [0, 1]

    wandb.init.side_effect = wandb.Error("No API key configured.")
    with pytest.raises(UsageError, match=r"wandb_project=mine: No API key configured\. .*WANDB_MODE=offline"):
        MetricsLog(tmp_path, "mine").__enter__()


def test_the_training_step_can_be_repeated_from_the_record_without_environments(finished: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    train(config(checkpoint_every=1, num_steps=2), short)
    run = Run(config(), tmp_path)
    begin = read_checkpoint(short, 1)
    end = read_checkpoint(short, 2)
    run.model.load_state_dict(begin["model"], strict=False)  # tied embeddings are there under one name
    optimizer = make_optimizer(run.model, config().optimizer)
    optimizer.load_state_dict(begin["optimizer"])
    verdicts = [FilteredGroup.of_record(record) for record in read_records(record_path(short, 1))]
    update_policy(run.model, optimizer, verdicts, config().loss, temperature=1.0, max_grad_norm=1.0)
    state = run.model.state_dict()
    assert {name for name, _ in run.model.named_parameters()} == set(end["model"])
    for name, value in end["model"].items():
        assert torch.equal(value, state[name]), name


def test_credit_can_be_computed_again_from_the_record(finished: Path) -> None:
    records = read_records(record_path(finished, 0))
    assert assign_credit([r.group for r in records], config().credit) == tuple(r.credit for r in records)


def test_the_model_folder_is_a_plain_one(finished: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(finished / "model").config.model_type == "qwen3"
    assert AutoTokenizer.from_pretrained(finished / "model").chat_template


# ---------------------------------------------------------------------------------------- failures are not data


def test_gradients_are_those_of_the_valid_members_alone(tmp_path: Path) -> None:
    """Crashes, hangs and slow steps at 20 %: what is trained on is what was trained on without them."""
    limits = EpisodeLimits(reset_timeout_s=1.0, step_timeout_s=1.0)
    group = GroupConfig(group_size=6, num_envs=8, max_retries=0, max_failure_rate=1.0, limits=limits)
    run = Run(config(group=group), tmp_path)
    attempts: Counter[str] = Counter()

    def chaotic() -> Env:
        return Chaos(run_make(), crash=0.08, hang=0.02, slow=0.1, slow_s=0.001, attempts=attempts)

    (env,) = run.envs
    run_make = env.make_env
    env.pool = EnvPool(chaotic, group.num_envs)

    import asyncio

    from agentgym.rollout.group import run_groups

    tasks = [(n, env.train_tasks[n]) for n in range(4)]
    groups = asyncio.run(run_groups(tasks, env.pool, run.make_agent(env), group, seed=0))
    lost = [t for g in groups for t in g.trajectories if not t.status.is_evidence]
    assert lost, "the faults struck"
    alone = tuple(replace(g, trajectories=g.valid) for g in groups)

    def gradient(chosen: Any) -> torch.Tensor:
        verdicts = filter_groups(chosen, credit_groups(chosen, config().credit), 2, "off")
        optimizer = torch.optim.SGD(run.model.parameters(), lr=0.0)
        update_policy(run.model, optimizer, verdicts, config().loss, temperature=1.0, max_grad_norm=1e9)
        return torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None])

    assert torch.equal(gradient(groups), gradient(alone))


# ------------------------------------------------------------------------------------------------------------ resume

KILL_WITHIN_S = 900
"""Far longer than a run takes, on a machine that is busy with other things too."""


@pytest.mark.slow
@pytest.mark.parametrize("when", [("sft", 25), ("rl", 1), ("rl", 4)], ids=["in sft", "in rl", "late in rl"])
def test_kill_9_and_resume_end_in_the_same_weights(
    finished: Path, tmp_path: Path, when: tuple[str, int], warm_python: str
) -> None:
    run_dir = tmp_path / "killed"
    run_dir.mkdir()
    save_config(config(), run_dir / "config.json")
    process = start(warm_python, run_dir)
    deadline = time.monotonic() + KILL_WITHIN_S
    while not any((row["phase"], row["step"]) == when for row in _rows(run_dir)):
        assert process.is_running() and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    assert not (run_dir / "model").exists()
    resume(run_dir)
    assert weights(run_dir) == weights(finished)
    rows = read_json_lines(run_dir / "metrics.jsonl")
    assert [r["step"] for r in rows if r["phase"] == "rl"] == list(range(1, NUM_STEPS + 1))
    for step in range(NUM_STEPS):
        again = [r.group.trajectories for r in read_records(record_path(run_dir, step))]
        first = [r.group.trajectories for r in read_records(record_path(finished, step))]
        assert [[t.segments[0].token_ids for t in g] for g in again] == [
            [t.segments[0].token_ids for t in g] for g in first
        ]


# ------------------------------------------------------------------------------------------------ asynchronous runs

ASYNC = ["pipeline.mode=async", "pipeline.max_staleness=2", "num_steps=8"]


def test_asynchronous_training_takes_every_task_once_within_the_bound(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(apply_overrides(config(), ASYNC), run_dir)
    assert sorted(trained_ordinals(run_dir)) == list(range(8 * 3))
    assert max(token_ages(run_dir)) <= 2
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    assert max(row["staleness_max"] for row in rows) == max(token_ages(run_dir)) > 0
    assert all(math.isfinite(row["loss"]) for row in rows if row["trained_tokens"])
    assert max(row["groups_ahead"] for row in rows) == 2 * 3


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(10))
def test_kill_9_in_asynchronous_training_loses_and_repeats_no_task(
    moment: int, finished: Path, tmp_path: Path, warm_python: str
) -> None:
    """The trainer dies at ten moments of its work; what it had taken since the last checkpoint is played again."""
    run_dir = tmp_path / "killed"
    run_dir.mkdir()
    warm = ["sft.num_demos=0", f"model.path={finished / 'model'}"]
    save_config(apply_overrides(config(), [*ASYNC, *warm]), run_dir / "config.json")
    process = start(warm_python, run_dir)
    deadline = time.monotonic() + KILL_WITHIN_S
    while len([row for row in _rows(run_dir) if row["phase"] == "rl"]) < 1 + moment % 5:
        assert process.is_running() and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(0.005)
    time.sleep(0.01 * moment)  # somewhere within a step
    process.kill()
    if not (run_dir / "model").exists():
        resume(run_dir)
    assert sorted(trained_ordinals(run_dir)) == list(range(8 * 3))
    assert max(token_ages(run_dir)) <= 2
    rows = read_json_lines(run_dir / "metrics.jsonl")
    assert [r["step"] for r in rows if r["phase"] == "rl"] == list(range(1, 9))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_members_that_were_not_needed_are_accounted_for(mode: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    extra = ["pipeline.over_provision=2", "pipeline.max_in_flight=auto", f"pipeline.mode={mode}", "num_steps=3"]
    train(apply_overrides(config(), extra), run_dir)
    records = [r for step in recorded_steps(run_dir) for r in read_records(record_path(run_dir, step))]
    assert sorted(r.group.ordinal for r in records) == list(range(3 * 3))
    assert all(len(r.group.valid) == 4 and len(r.group.cut) == 2 for r in records)
    for record in records:  # the six members of a group, each once
        played = [t.seed for t in record.group.trajectories] + [cut.seed for cut in record.group.cut]
        assert len(set(played)) == 6
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["num_cut"] for row in rows] == [6.0] * 3
    assert all(sum(row[f"cut/{reason}"] for reason in ("slow", "surplus", "waiting")) == 6 for row in rows)
    assert all(row["status/aborted"] == 0 and 1 <= row["in_flight_limit"] <= 8 for row in rows)


def test_min_valid_completes_a_group_where_asked(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(apply_overrides(config(num_steps=2), ["pipeline.complete_with=min_valid", "group.min_valid=3"]), run_dir)
    records = [r for step in recorded_steps(run_dir) for r in read_records(record_path(run_dir, step))]
    assert all(len(r.group.valid) == 3 and len(r.group.cut) == 1 for r in records)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pipeline.over_provision=-1"], "over_provision must be at least 0, got -1"),
        (["pipeline.max_in_flight=-3"], "max_in_flight must be auto or at least 0, got -3"),
        (["pipeline.max_in_flight=some"], r"max_in_flight: .* valid integer.*, or should be 'auto', got 'some'"),
        (["pipeline.complete_with=min_valid", "group.min_valid=1"], "composition rule 2"),
    ],
)
def test_pipelines_that_cannot_be_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config(), overrides)


def _rows(run_dir: Path) -> list[dict[str, Any]]:
    try:
        return read_json_lines(run_dir / "metrics.jsonl")
    except (CorruptDataError, json.JSONDecodeError):  # read while it was written
        return []


def test_a_finished_run_is_not_overwritten(finished: Path) -> None:
    with pytest.raises(UsageError, match="holds a run already; resume it"):
        train(config(), finished)


def test_a_run_is_not_resumed_twice_at_once(finished: Path) -> None:
    with locked(finished), pytest.raises(UsageError, match="is being written by process"):
        train(config(), finished, resume=True)


def test_a_resumed_run_keeps_its_configuration(finished: Path) -> None:
    with pytest.raises(ConfigError, match="other values of seed"):
        train(config(seed=1), finished, resume=True)


@pytest.mark.parametrize("name", ["outline.pt", "__0_0.distcp", ".metadata"])
def test_a_damaged_checkpoint_says_what_to_do(name: str, finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(finished, copy)
    path = checkpoint_path(copy, "rl", 6) / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CorruptDataError, match=rf"rl-000006 is damaged: {name} .* to resume from rl-000004") as raised:
        train(config(), copy, resume=True)
    assert "delete" not in str(raised.value)


def test_a_whole_checkpoint_that_is_not_read_is_not_called_damaged(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "strange"
    shutil.copytree(finished, copy)
    folder = checkpoint_path(copy, "rl", 6)
    other = pickle.dumps(pickle.loads((folder / ".metadata").read_bytes()) and Decimal(1))
    (folder / ".metadata").write_bytes(other)
    hashes = json.loads((folder / HASHES).read_text())
    hashes["sha256"][".metadata"] = hashlib.sha256(other).hexdigest()
    (folder / HASHES).write_text(json.dumps(hashes | {"written_by": "Python 4.0"}))
    with pytest.raises(
        CorruptDataError, match=r"is whole, .*decimal\.Decimal.* what wrote it \(Python 4\.0\), and keep"
    ):
        train(config(), copy, resume=True)
    (folder / HASHES).unlink()
    with pytest.raises(CorruptDataError, match=r"has no hashes, so it may be whole: keep it") as raised:
        train(config(), copy, resume=True)
    assert "damaged" not in str(raised.value) and "delete" not in str(raised.value)


def test_metadata_of_other_releases_of_python_are_read(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python before 3.11.4 pickles a member of an enumeration by getattr, and Python 3.13 names another module of paths
    copy = tmp_path / "other"
    shutil.copytree(finished, copy)
    file = checkpoint_path(copy, "rl", 6) / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    with monkeypatch.context() as patched:
        patched.setattr(Enum, "__reduce_ex__", lambda member, protocol: (getattr, (type(member), member.name)))
        written = pickle.dumps(metadata, protocol=3).replace(b"cpathlib\n", b"cpathlib._local\n")
    assert b"getattr" in written and b"pathlib._local" in written
    file.write_bytes(written)
    (checkpoint_path(copy, "rl", 6) / HASHES).unlink()
    train(config(), copy, resume=True)
    assert weights(copy) == weights(finished)


@pytest.mark.parametrize("attribute", ["__init__", "mro", 0])
def test_getattr_of_anything_but_a_member_is_not_called(attribute: object, finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "evil"
    shutil.copytree(finished, copy)

    class Call:
        def __reduce__(self) -> tuple[Any, ...]:
            return getattr, (_MEM_FORMAT_ENCODING, attribute)

    (checkpoint_path(copy, "rl", 6) / ".metadata").write_bytes(pickle.dumps(Call()))
    with pytest.raises(CorruptDataError, match=r"calls? getattr"):
        train(config(), copy, resume=True)


def test_metadata_that_would_run_code_is_not_read(finished: Path, tmp_path: Path) -> None:
    copy, touched = tmp_path / "evil", tmp_path / "touched"
    shutil.copytree(finished, copy)
    call = pickle.dumps((touched.touch, ()))
    (checkpoint_path(copy, "rl", 6) / ".metadata").write_bytes(call[:-1] + b"R.")
    with pytest.raises(CorruptDataError, match="which no checkpoint holds"):
        train(config(), copy, resume=True)
    assert not touched.exists()


def test_a_checkpoint_of_an_older_version_is_not_passed_over(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "old"
    shutil.copytree(finished, copy)
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints").mkdir()
    (copy / "checkpoints" / "rl-000006.pt").touch()
    with pytest.raises(CorruptDataError, match="an older version of agentgym"):
        load_latest_checkpoint(copy)


def test_what_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="num_receptacles is a whole number"):
        train(apply_overrides(load_recipe("tiny"), ["env.kwargs.num_receptacles=99"]), tmp_path / "run")
    with pytest.raises(UsageError, match=r"pip install -e '\.\[wandb\]'"):
        train(config(wandb_project="mine"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("estimator", ["dr_grpo", "rloo", "opo", "mc_grpo", "spo", "hgpo", "flow_grpo"])
def test_estimators_train_with_finite_losses(estimator: str, tmp_path: Path) -> None:
    overrides = [f"credit.estimator={estimator}"]
    train(apply_overrides(config(num_steps=2), overrides), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    trained = [row for row in rows if row["trained_tokens"]]
    assert trained and all(abs(row["loss"]) < 1e3 and row["grad_norm"] < 1e3 for row in trained)


def test_turns_without_loss_weight_are_masked(finished: Path) -> None:
    (record, *_) = [r for r in read_records(record_path(finished, 0)) if r.dropped is None]
    credit = tuple(tuple(replace(turn, loss_weight=0.0) for turn in row) for row in record.credit)
    masked = build_samples([FilteredGroup.of_record(replace(record, credit=credit))])
    assert masked and all(not len(sample.in_batch) for sample in masked)


@pytest.mark.parametrize(
    "credit",
    [
        ["credit.estimator=reinforce_pp"],
        ["credit.estimator=grpo", 'credit.modulators=[{"kind": "empg"}]'],
        ["credit.estimator=grpo", 'credit.modulators=[{"kind": "aepo_advantage"}]'],
        ["credit.estimator=grpo", 'credit.selections=[{"kind": "d3s"}]'],
    ],
    ids=lambda credit: credit[-1],
)
def test_components_that_need_the_model_train_with_finite_numbers(credit: list[str], tmp_path: Path) -> None:
    train(apply_overrides(config(num_steps=2), credit), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert any(row["trained_tokens"] for row in rows)
    assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))


CLUES = [f"env.id={ENV_FILE.with_name('clue_env.py')}:Clue-v0", "columns.answer_template=say: {answer}"]
GAIN = 'credit.shapers=[{"kind": "information_gain"}]'


def test_information_gain_trains(tmp_path: Path) -> None:
    train(apply_overrides(config(num_steps=2), [*CLUES, "credit.estimator=igpo", GAIN]), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(row["trained_tokens"] and row["credit/info_gain_mismatches"] == 0 for row in rows)
    assert all(0 < row["answer_prob_first"] < 1 and 0 < row["answer_prob_last"] < 1 for row in rows)
    assert all(math.isfinite(row["loss"]) and row["info_gain"] != 0 for row in rows)


def test_spo_forgets_by_the_drift_on_tasks_it_meets_again(tmp_path: Path) -> None:
    few = [CLUES[0], "env.kwargs.num_tasks=4", "credit.estimator=spo"]
    train(apply_overrides(config(num_steps=3), few), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert rows[0]["revisited_share"] == 0 and rows[-1]["revisited_share"] == 1
    assert rows[0]["drift"] == 0 and rows[-1]["drift"] > 1e-4
    saved = read_checkpoint(tmp_path / "run", 3)
    assert len(saved["columns"]["env"]["drift"]) == 4


@pytest.mark.parametrize(
    "credit",
    [
        ["credit.estimator=grpo", 'credit.modulators=[{"kind": "empg"}]'],
        ["credit.estimator=token_gae"],
        ["credit.estimator=archer"],
        ["credit.estimator=spo", "env.num_train_tasks=4"],
        [*CLUES, "credit.estimator=igpo", GAIN],
    ],
    ids=["empg", "token_gae", "archer", "spo", "igpo"],
)
def test_what_only_the_model_knew_is_on_record_for_credit_to_be_computed_again(
    credit: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    train(apply_overrides(config(num_steps=3, groups_per_step=4), credit), run_dir)
    name = next(key for key in credit if key.startswith("credit.estimator=")).partition("=")[2]
    plan = plan_recredit([name], read_credit_settings(run_dir), [], read_held_columns(run_dir))
    tally = CreditTally()
    for again in recredit(read_batches(run_dir, select_steps(run_dir, None, None), plan.configs), plan.configs):
        tally.add(again)
    recorded, recomputed = tally.summaries()
    assert recomputed.largest_gap == 0.0
    assert recorded.num_turns == recomputed.num_turns > 0


def test_information_gain_without_references_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the tasks have none \(composition rule 10\): task 'train-0'"):
        train(apply_overrides(config(), ["credit.estimator=igpo", GAIN]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('credit.modulators=[{"kind": "shared_prefix"}]', "shared_prefix changes nothing where episodes do not branch"),
    ],
)
def test_components_the_trainer_cannot_feed_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config(), [override])
