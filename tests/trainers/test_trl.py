"""Our credit inside TRL's GRPOTrainer, with TRL itself."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import math
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from testkit.spoken_world import OneTurn, Parity, spoken_model

pytest.importorskip("trl")

from transformers import TrainerCallback
from trl import GRPOConfig

from agentgym.check.chaos import Chaos
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.estimators.gae import TokenGaeOptions
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import ClosedError, ConfigError, CorruptDataError, MissingExtraError, RunStoppedError, UsageError
from agentgym.render.config import ChatConfig
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import GroupRecord, read_records, record_path
from agentgym.trainers.data.samples import FilteredGroup, build_samples, filter_groups
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.reporting.rollout_metrics import describe_rollouts
from agentgym.trainers.trl.environments import task_dataset
from agentgym.trainers.trl.settings import CreditSettings, check_args
from agentgym.trainers.trl.trainer import _OF_STRATEGIES, CreditGRPOTrainer
from agentgym.trainers.trl.versions import TESTED_BELOW, TESTED_FROM
from agentgym.types import Completion, Segment, TrajectoryGroup

ROOT = Path(__file__).resolve().parents[2]
DATASET = task_dataset(Parity, "train", 16)
CREDIT = CreditConfig(estimator="gigpo", step_weight=0.5)
SETTINGS = CreditSettings(credit=CREDIT)
SAME_LOSS = LossConfig(clip_low=0.2, clip_high=0.28)
"""What `arguments` asks of TRL."""


def arguments(folder: Path, **changes: Any) -> Any:
    """Three groups of four episodes per step, a batch per step, on the CPU."""
    chosen = {
        "per_device_train_batch_size": 12,
        "num_generations": 4,
        "max_completion_length": 5,
        "max_steps": 1,
        "epsilon_high": 0.28,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 2.0,
        "max_grad_norm": 0.0,  # so that the gradient is the loss's
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        **changes,
    }
    return GRPOConfig(output_dir=str(folder / "trl"), **chosen)


UNLUCKY = GroupConfig(max_retries=0, max_failure_rate=1.0)


class Gradients(TrainerCallback):
    """The gradient of each optimizer step."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(gradient_of(kwargs["model"]))


class Watched(CreditGRPOTrainer):
    """Keeps what reaches the loss."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self.reached = [*getattr(self, "reached", []), {name: tensor.clone() for name, tensor in inputs.items()}]
        return super()._compute_loss(model, inputs)


class ShiftedEngine(TorchEngine):
    """Says of its tokens that they were likelier or less likely than they were, as a lower precision would."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session_id: str = ""
    ) -> Completion:
        made = await super().generate(prompt_ids, sampling, session_id=session_id)
        shifts = [0.9 * (token % 5 - 2) for token in made.token_ids]
        return replace(made, logprobs=tuple(lp + shift for lp, shift in zip(made.logprobs, shifts, strict=True)))


def gradient_of(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def our_gradient(model: Any, verdicts: Sequence[FilteredGroup]) -> torch.Tensor:
    """What our own trainer would step along."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    update_policy(model, optimizer, verdicts, SAME_LOSS, temperature=1.0, max_grad_norm=1e9)
    return gradient_of(model)


def make_trainer(
    folder: Path,
    env: Any = Parity,
    *,
    settings: CreditSettings = SETTINGS,
    engine: Any = None,
    trl_arguments: dict[str, Any] | None = None,
    **changes: Any,
) -> tuple[Any, Gradients]:
    model, tokenizer = spoken_model()
    gradients = Gradients()
    trainer = Watched(
        model,
        env,
        settings=replace(settings, chat=ChatConfig(codec="text"), record_dir=folder),
        args=arguments(folder, **changes),
        engine=None if engine is None else engine(model),
        processing_class=tokenizer,
        callbacks=[gradients],
        **{"train_dataset": DATASET, **(trl_arguments or {})},
    )
    return trainer, gradients


def recorded(folder: Path, batch: int = 0) -> tuple[GroupRecord, ...]:
    return read_records(record_path(folder, batch))


def verdicts_of(groups: Sequence[TrajectoryGroup]) -> list[FilteredGroup]:
    return filter_groups(groups, credit_groups(groups, CREDIT), 2, "advantage")


# -------------------------------------------------------------------------------------------------------- the loss


def test_advantages_that_reach_the_loss_are_those_of_our_credit_token_by_token(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path)
    trainer.train()
    groups = [record.group for record in recorded(tmp_path)]
    expected = [
        (row.token_ids, tuple(row.over_tokens("is_trained")), pytest.approx(row.over_tokens("advantage"), abs=1e-6))
        for row in build_samples(verdicts_of(groups))
    ]
    assert any(len(set(sample.over_tokens("advantage"))) > 2 for sample in build_samples(verdicts_of(groups))), (
        "turns differ"
    )
    found = [row for inputs in trainer.reached for row in rows_of(inputs)]
    assert sorted(row[:2] for row in found) == sorted(row[:2] for row in expected)
    for row in expected:
        assert any(row[:2] == other[:2] and other[2] == row[2] for other in found)


def rows_of(inputs: dict[str, torch.Tensor]) -> list[tuple[Any, Any, Any]]:
    """Token ids, loss mask and advantages of the rows that train, without padding."""
    rows = []
    for index in range(len(inputs["prompt_ids"])):
        kept = inputs["completion_mask"][index].bool()
        prompt = inputs["prompt_ids"][index][inputs["prompt_mask"][index].bool()].tolist()
        nothing = [0] * len(prompt)
        mask = (*nothing, *inputs["tool_mask"][index][kept].tolist())
        tokens = (*prompt, *inputs["completion_ids"][index][kept].tolist())
        if any(mask):
            rows.append((tokens, mask, (*map(float, nothing), *inputs["advantages"][index][kept].tolist())))
    return rows


@pytest.mark.parametrize("num_pieces", [1, 3], ids=["one batch", "three micro-batches"])
@pytest.mark.parametrize("engine", [None, ShiftedEngine], ids=["exact engine", "engine with a gap"])
def test_the_first_gradient_is_that_of_our_own_trainer(tmp_path: Path, num_pieces: int, engine: Any) -> None:
    start, _ = spoken_model()
    trainer, gradients = make_trainer(
        tmp_path, engine=engine, per_device_train_batch_size=12 // num_pieces, gradient_accumulation_steps=num_pieces
    )
    trainer.train()
    assert len(trainer.reached) == num_pieces
    ratios = torch.cat([inputs["importance_sampling_ratio"].flatten() for inputs in trainer.reached])
    assert (ratios.max() == 2.0) == (engine is not None), "the correction is TRL's, cut at its bound"
    ours = our_gradient(start, [FilteredGroup.of_record(record) for record in recorded(tmp_path)])
    assert ours.norm() > 0.1
    torch.testing.assert_close(gradients.seen[0], ours, atol=2e-6, rtol=1e-4)


def test_an_episode_of_several_segments_is_several_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = make_trainer(tmp_path)
    trainer.train()
    groups = [in_segments(record.group) for record in recorded(tmp_path)]
    num_rows = len(build_samples(verdicts_of(groups)))
    assert num_rows > 12 and num_rows % 3
    again, gradients = make_trainer(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=3)
    monkeypatch.setattr(again.rollouts, "play", lambda *args, **kwargs: tuple(verdicts_of(groups)))
    again.train()
    assert sum(len(inputs["prompt_ids"]) for inputs in again.reached) == num_rows + (-num_rows % 3)
    torch.testing.assert_close(
        gradients.seen[0], our_gradient(spoken_model()[0], verdicts_of(groups)), atol=2e-6, rtol=1e-4
    )


def in_segments(group: TrajectoryGroup) -> TrajectoryGroup:
    """The group as if its context had been cut before every turn."""
    return replace(
        group,
        trajectories=tuple(
            replace(t, segments=tuple(Segment((turn,)) for turn in t.turns)) for t in group.trajectories
        ),
    )


def test_several_uses_of_a_batch_keep_the_old_probabilities(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, num_iterations=2, max_steps=2, vllm_importance_sampling_correction=False)
    trainer.train()
    first, second = trainer.reached
    assert torch.equal(first["old_per_token_logps"].sort().values, second["old_per_token_logps"].sort().values)
    assert "importance_sampling_ratio" not in first
    once, _ = make_trainer(tmp_path, vllm_importance_sampling_correction=False)
    once.train()
    assert "old_per_token_logps" not in once.reached[0], "the loss's own forward gives it"


def test_steps_move_the_weights_and_say_what_happened(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, max_steps=4, log_completions=False)
    start = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    moved = [name for name, value in trainer.model.state_dict().items() if not torch.equal(value, start[name])]
    assert len(moved) == len(start)
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == 4
    for row in rows:
        assert row["sampling/sampling_logp_difference/max"] < 1e-4
        assert row["rollouts/anchor_share"] > 0.5
        assert row["rollouts/staleness_mean"] == row["rollouts/staleness_max"] == 0
        assert -5 < row["reward"] < 5
        assert row["clip_ratio/region_mean"] == 0
    ordinals = [record.group.ordinal for step in range(4) for record in recorded(tmp_path, step)]
    assert ordinals == list(range(12))


def test_every_number_of_trls_log_is_what_it_says(tmp_path: Path) -> None:
    """Two pieces per batch, so that a row fills the last one; each number again from the record and the batch."""
    trainer, gradients = make_trainer(
        tmp_path, chaotic(0.1), settings=replace(SETTINGS, group=UNLUCKY), engine=ShiftedEngine,
        per_device_train_batch_size=6, gradient_accumulation_steps=2,
    )  # fmt: skip
    trainer.train()
    (row,) = [row for row in trainer.state.log_history if "loss" in row]
    records = recorded(tmp_path)
    valid = [one for record in records for one in record.group.valid]
    returns, lengths = (
        [one.reward or 0.0 for one in valid],
        [sum(len(turn.completion.token_ids) for turn in one.turns) for one in valid],
    )
    assert 2 < len(valid) < 12, "some episodes failed, and are in no number"
    flat = [len({t.reward for t in record.group.valid}) == 1 for record in records for _ in record.group.valid]
    prompts = [len(part.turns[0].prompt_ids) for one in valid for part in one.segments]
    expected = {
        "learning_rate": 0.01,
        "grad_norm": gradients.seen[0].norm().item(),
        "reward": statistics.fmean(returns),
        "reward_std": statistics.stdev(returns),
        "frac_reward_zero_std": statistics.fmean(flat),
        "completions/mean_length": statistics.fmean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "num_tokens": sum(prompts) + sum(lengths),
    }
    old, engine, mask, weight, advantage = (
        torch.cat([inputs[name].flatten() for inputs in trainer.reached])
        for name in (
            "old_per_token_logps", "sampling_per_token_logps", "tool_mask", "importance_sampling_ratio", "advantages"
        )
    )  # fmt: skip
    trained = mask.bool()
    gap, weight, advantage = (old - engine).abs()[trained], weight[trained], advantage[trained]
    expected |= {
        "sampling/sampling_logp_difference/mean": gap.mean().item(),
        "sampling/sampling_logp_difference/max": gap.max().item(),
        "sampling/importance_sampling_ratio/min": weight.min().item(),
        "sampling/importance_sampling_ratio/mean": weight.mean().item(),
        "sampling/importance_sampling_ratio/max": weight.max().item(),
        # the policy's own ratio is 1
        **dict.fromkeys(("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"), 0.0),
        **dict.fromkeys(("clip_ratio/low_min", "clip_ratio/high_max"), 0.0),
        "loss": -(advantage * weight).mean().item(),
    }
    assert weight.max() == 2.0 and weight.min() < 1, "the engine's probabilities are other ones"
    ours = describe_rollouts([FilteredGroup.of_record(record) for record in records], 0)
    strategies = {name for name in ours if name.startswith(_OF_STRATEGIES)}
    expected |= {f"rollouts/{name}": ours[name] for name in ours if name not in strategies}
    timed = {"entropy", "step", "epoch", "step_time"}
    assert {name for name in row if name not in timed} == set(expected)
    wrong = {
        name: (row[name], value) for name, value in expected.items() if row[name] != pytest.approx(value, abs=2e-4)
    }
    assert not wrong
    assert 0 < row["entropy"] < math.log(len(trainer.processing_class))


def test_low_rank_adapters_and_a_reference(tmp_path: Path) -> None:
    from peft import LoraConfig

    low_rank = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=True)
    trainer, _ = make_trainer(tmp_path, beta=0.1, max_steps=3, trl_arguments={"peft_config": low_rank})
    trainer.train()
    kl = [row["kl"] for row in trainer.state.log_history if "kl" in row]
    assert kl[0] == pytest.approx(0.0, abs=1e-9) and kl[-1] > 0
    gaps = [row["sampling/sampling_logp_difference/max"] for row in trainer.state.log_history if "loss" in row]
    assert max(gaps) < 1e-4, "the engine samples from the adapted weights"


def test_evaluation_plays_groups_of_its_own(tmp_path: Path) -> None:
    tests = {"eval_dataset": task_dataset(Parity, "test", 6)}
    trainer, _ = make_trainer(tmp_path, trl_arguments=tests, num_generations_eval=2, per_device_eval_batch_size=4)
    before = trainer.rollouts.to_dict()
    metrics = trainer.evaluate()
    assert {"eval_loss", "eval_reward", "eval_rollouts/success"} <= set(metrics)
    assert trainer.rollouts.to_dict() == before
    assert trainer.evaluate()["eval_reward"] == metrics["eval_reward"], "the same tasks and seeds, the same policy"


# --------------------------------------------------------------------------------------------- failures are not data


def chaotic(crash: float) -> Any:
    attempts: Counter[str] = Counter()
    return lambda: Chaos(Parity(), crash=crash, attempts=attempts, seed=1)


def test_a_failed_rollout_changes_nothing(tmp_path: Path) -> None:
    unlucky = GroupConfig(max_retries=0, max_failure_rate=1.0)
    trainer, gradients = make_trainer(
        tmp_path, chaotic(0.18), settings=replace(SETTINGS, group=unlucky), log_completions=True
    )
    trainer.train()
    records = recorded(tmp_path)
    groups = [record.group for record in records]
    assert 0 < sum(len(group.valid) for group in groups) < 12, "some episodes were lost, not all"
    alone = [replace(group, trajectories=group.valid) for group in groups]
    ours = our_gradient(spoken_model()[0], verdicts_of(alone))
    assert ours.norm() > 0.1
    torch.testing.assert_close(gradients.seen[0], ours, atol=2e-6, rtol=1e-4)
    (row,) = [row for row in trainer.state.log_history if "loss" in row]
    returns = [t.reward or 0.0 for group in groups for t in group.valid]
    assert row["reward"] == pytest.approx(sum(returns) / len(returns))
    assert row["rollouts/status/env_error"] == 12 - len(returns)
    assert sum(map(math.isnan, trainer._logs["rewards"]["episode_return"])) == 12 - len(returns)
    assert (tmp_path / "trl" / "completions" / "completions_00001.parquet").is_file()


def test_groups_with_too_few_valid_members_have_no_rows(tmp_path: Path) -> None:
    demanding = GroupConfig(max_retries=0, max_failure_rate=1.0, min_valid=4)
    trainer, _ = make_trainer(tmp_path, chaotic(0.18), settings=replace(SETTINGS, group=demanding))
    trainer.train()
    dropped = {record.dropped for record in recorded(tmp_path)}
    assert "too_few_valid" in dropped
    kept = [record.group for record in recorded(tmp_path) if len(record.group.valid) == 4]
    assert sum(len(rows_of(inputs)) for inputs in trainer.reached) == len(build_samples(verdicts_of(kept)))


def test_a_batch_without_a_valid_episode_has_no_gradient(tmp_path: Path) -> None:
    hopeless = GroupConfig(max_retries=0, max_failure_rate=1.0)
    trainer, gradients = make_trainer(tmp_path, chaotic(1.0), settings=replace(SETTINGS, group=hopeless))
    trainer.train()
    assert not gradients.seen[0].any()
    (row,) = [row for row in trainer.state.log_history if "loss" in row]
    assert row["loss"] == 0 and row["reward"] is None


def test_too_many_failures_stop_the_run_with_the_reason(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, chaotic(1.0))
    with pytest.raises(RunStoppedError, match=r"12 of 12 episodes failed because of the infrastructure.*crash by plan"):
        trainer.train()


# ------------------------------------------------------------------------------------------------------- resume


def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    credit = CreditSettings(credit=CreditConfig(estimator="spo"))  # it has a memory
    saved: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole, _ = make_trainer(tmp_path / "whole", OneTurn, settings=credit, **saved)
    whole.train()
    resumed, _ = make_trainer(tmp_path / "resumed", OneTurn, settings=credit, **saved)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "trl" / "checkpoint-2"))
    assert resumed.rollouts.to_dict() == whole.rollouts.to_dict()
    for step in (2, 3):
        again, first = recorded(tmp_path / "resumed", step), recorded(tmp_path / "whole", step)
        assert [r.group.ordinal for r in again] == [r.group.ordinal for r in first]
        assert tokens(again) == tokens(first)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def tokens(records: Sequence[GroupRecord]) -> list[Any]:
    return [[s.token_ids for s in t.segments] for r in records for t in r.group.trajectories]


def test_a_checkpoint_of_another_trainer_is_refused(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, save_strategy="steps", save_steps=1)
    trainer.train()
    checkpoint = tmp_path / "trl" / "checkpoint-1"
    (checkpoint / "agentgym_rollouts.json").unlink()
    again, _ = make_trainer(tmp_path, max_steps=2)
    with pytest.raises(CorruptDataError, match=r"has no agentgym_rollouts\.json"):
        again.train(resume_from_checkpoint=str(checkpoint))


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_type": "grpo"}, "loss_type='grpo'.*divide by rows.*set it to 'dapo' or 'cispo'"),
        ({"top_p": 0.9}, "top_p=0.9.*whole distribution"),
        ({"mask_truncated_completions": True}, "use the selection overlong_mask"),
        ({"importance_sampling_level": "sequence"}, "composition rule 5.*gigpo gives one per turn"),
        ({"scale_rewards": "none"}, "advantages come from settings.credit"),
        ({"remove_unused_columns": True}, "take the task's columns"),
    ],
)
def test_arguments_of_trl_that_cannot_be_served_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(tmp_path, **changes)


@pytest.mark.parametrize(
    ("credit", "message"),
    [
        (CreditConfig(estimator="turn_gae"), "a model of agentgym's own trainer: value"),
        (CreditConfig(estimator="token_gae", options=TokenGaeOptions()), "token_value"),
        (CreditConfig(estimator="capo"), "needs a judge that marks wrong turns"),
    ],
)
def test_credit_without_its_data_is_refused(credit: CreditConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(tmp_path, settings=CreditSettings(credit=credit))


def test_an_estimator_of_ones_own_is_tried_before_training(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from agentgym.credit.component import estimator\n"
        "@estimator('odd', paper='ours')\ndef odd(table): return table.reward\n"
    )
    settings = CreditSettings(credit=CreditConfig(estimator=f"{tmp_path / 'odd.py'}:odd"))
    with pytest.raises(ConfigError, match="estimator 'odd' returned ndarray, expected"):
        make_trainer(tmp_path, settings=settings)


def test_settings_of_another_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"settings is CreditConfig\(.*, expected CreditSettings, as in Credit"):
        check_args(arguments(tmp_path), cast(Any, CreditConfig(estimator="gigpo")))


def test_a_model_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no model at .*gone; expected a folder with a config\.json"):
        CreditGRPOTrainer(str(tmp_path / "gone"), Parity, args=arguments(tmp_path), train_dataset=DATASET)


def test_rewards_and_tools_come_from_the_environment(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no reward_funcs"):
        make_trainer(tmp_path, trl_arguments={"reward_funcs": [len]})


def test_rows_must_name_tasks_of_the_environment(tmp_path: Path) -> None:
    prompts = DATASET.remove_columns(["task_id", "task_index"])
    trainer, _ = make_trainer(tmp_path, trl_arguments={"train_dataset": prompts})
    with pytest.raises(
        UsageError, match=r"not task_id, task_split, task_index, task_seed; make it with .*task_dataset"
    ):
        trainer.train()
    others = DATASET.map(lambda row: {"task_id": f"other-{row['task_id']}"})
    trainer, _ = make_trainer(tmp_path, trl_arguments={"train_dataset": others})
    with pytest.raises(UsageError, match=r"says task 'other-train-.*', and the environment has train-"):
        trainer.train()


def test_a_pool_of_ones_own_and_its_end(tmp_path: Path) -> None:
    made: list[Env] = []

    def make_env() -> Env:
        made.append(Parity())
        return made[-1]

    trainer, _ = make_trainer(tmp_path, EnvPool(make_env, 3))
    trainer.train()
    trainer.close()
    trainer.close()
    assert 1 <= len(made) <= 3
    assert all(env.is_closed for env in made)
    with pytest.raises(ClosedError):
        trainer.evaluate(DATASET)


# ------------------------------------------------------------------------------------------------------- versions


def test_the_extra_is_the_tested_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    low, high = (".".join(map(str, bound)) for bound in (TESTED_FROM, TESTED_BELOW))
    assert f"trl>={low},<{high}" in project["optional-dependencies"]["trl"]


def test_other_versions_are_refused_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.99.0")
    message = r"tested with trl>=1\.16,<1\.17.*installed is 1\.99\.0.*pip install -e '\.\[trl\]'"
    with pytest.raises(UsageError, match=message):
        make_trainer(tmp_path)


def test_without_trl_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "agentgym.trainers.trl.trainer")
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(MissingExtraError, match=r"CreditGRPOTrainer needs the extra 'trl': pip install -e '\.\[trl\]'"):
        importlib.import_module("agentgym.trainers.trl.trainer")


def test_importing_agentgym_loads_neither_trl_nor_datasets() -> None:
    code = "import sys, agentgym, agentgym.envs; sys.exit(str([n for n in ('trl', 'datasets') if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "[]\n"
