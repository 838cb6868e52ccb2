"""TRL's GRPOTrainer with our rollouts and our credit: an advantage per turn instead of one per conversation.

TRL has the model, the optimizer, the schedule, logging, checkpoints and the loss. agentgym has the rest:

* the episodes, played by the embedded engine on the weights that TRL trains, so that sampled tokens are never decoded
  and encoded again;
* their credit;
* the choice of rows: failed episodes, and groups with too few valid episodes, have none.

One private method of TRL is replaced, ``_generate_and_score_completions``. Its result is the input of
``_compute_loss``: prompts and completions, ``tool_mask``, ``advantages`` (row, token), ``old_per_token_logps``,
``importance_sampling_ratio`` and ``num_items_in_batch``. Checkpoints have one more file. :mod:`versions` lists the
tested versions of TRL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from agentgym.canonical import read_json
from agentgym.credit.trial import check_own_components
from agentgym.engine import Engine, SamplingParams
from agentgym.env.env import Env
from agentgym.errors import CorruptDataError, MissingExtraError, UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.config.columns import check_columns
from agentgym.trainers.config.train import EnvConfig, TrainConfig
from agentgym.trainers.data.samples import FilteredGroup, build_samples
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.model import as_ids
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.reporting.rollout_metrics import describe_rollouts
from agentgym.trainers.trl.batch import engine_ratio, to_trl
from agentgym.trainers.trl.environments import env_maker
from agentgym.trainers.trl.rollouts import CreditedRollouts
from agentgym.trainers.trl.settings import CreditSettings, check_args
from agentgym.trainers.trl.versions import check_trl
from agentgym.trainers.types import CausalLM
from agentgym.types import Json, Message, Trajectory

try:
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer.utils import use_adapter
except ImportError as error:
    raise MissingExtraError("CreditGRPOTrainer", "trl") from error

STATE_FILE = "agentgym_rollouts.json"
_OF_STRATEGIES = (
    "num_branches", "num_hints", "num_continued", "num_corrected", "num_feedback", "num_reflections", "num_replayed",
    "num_demonstrations", "num_patched", "num_cut", "cut/", "cut_tokens",
)  # fmt: skip
"""Beginnings of the metrics of strategies."""
_OURS = ("reward_funcs", "rollout_func", "tools", "environment_factory", "reward_processing_classes")


class CreditGRPOTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL has no types
    """TRL's GRPOTrainer on an agentgym environment, with one of agentgym's credit estimators.

    Example (``docs/outside.md`` has one that runs)::

        trainer = CreditGRPOTrainer(
            "Qwen/Qwen3-0.6B",
            "agentgym/Household-v0",
            settings=CreditSettings(credit=CreditConfig(estimator="gigpo")),
            args=GRPOConfig(num_generations=8, max_completion_length=64, max_steps=100),
            train_dataset=task_dataset("agentgym/Household-v0"),
        )
        trainer.train()
    """

    def __init__(
        self,
        model: CausalLM | str,
        env: str | EnvPool | Callable[[], Env],
        *,
        settings: CreditSettings = CreditSettings(),  # noqa: B008  (frozen)
        args: Any = None,
        env_kwargs: Mapping[str, object] | None = None,
        engine: Engine | None = None,
        **trl_arguments: Any,
    ) -> None:
        """Create the trainer.

        Args:
            model: the model, as GRPOTrainer takes it, or a source that ``model.path`` takes.
            env: a registered id, ``module:Id``, ``file.py:Id``, a function that makes an environment, or a pool.
            settings: credit and rollouts.
            args: TRL's ``GRPOConfig``. ``per_device_train_batch_size`` counts episodes; an episode with several context
                windows has several rows.
            env_kwargs: arguments of the environment, if ``env`` is a name.
            engine: the engine to sample from, by default the embedded one; its ``update_weights`` must accept this
                model's weights.
            trl_arguments: further arguments of GRPOTrainer, such as ``train_dataset`` (made by ``task_dataset``).

        Raises:
            UsageError: the version of TRL is not a tested one, an argument is not supported, or there is no such model.
        """
        check_trl("CreditGRPOTrainer")
        args = GRPOConfig() if args is None else args
        check_args(args, settings)
        if given := [name for name in _OURS if name in trl_arguments]:
            raise UsageError(f"CreditGRPOTrainer takes no {given[0]}: the environment gives the tools and the rewards")
        sampling = SamplingParams(max_new_tokens=args.max_completion_length, temperature=args.temperature)
        _check_rollouts(settings, sampling, args.num_generations)
        if isinstance(model, str) and not Path(model).is_dir():
            model = local_model(model)
        super().__init__(model=model, reward_funcs=[_environment_return], args=args, **trl_arguments)
        # What TRL's loss asks by this name is whether another engine than the trainer's forward has sampled. It has,
        # and nothing else of what the name stands for is reached, since generation is replaced.
        self.use_vllm = True
        pool = env if isinstance(env, EnvPool) else EnvPool(env_maker(env, env_kwargs or {}), settings.group.num_envs)
        self.rollouts = CreditedRollouts(
            pool,
            self._embedded_engine(settings) if engine is None else engine,
            ChatRenderer(self._tokenizer, settings.chat, as_ids(self.model.generation_config.eos_token_id)),
            settings,
            sampling,
            seed=args.seed,
        )

    def close(self) -> None:
        """Close the engine and the environments; a second call does nothing."""
        self.rollouts.close()

    def _embedded_engine(self, settings: CreditSettings) -> TorchEngine:
        model = self.accelerator.unwrap_model(self.model)
        own_limit = min(int(getattr(model.config, "max_position_embeddings", 4096)), 4096)
        context = settings.max_context_tokens or own_limit
        return TorchEngine(model, num_slots=settings.group.num_envs, max_context_tokens=context)

    # ------------------------------------------------------------------------------------------ what TRL calls

    def _generate_and_score_completions(self, inputs: Sequence[Mapping[str, object]]) -> dict[str, Tensor]:
        """Play the episodes of a batch's rows, and return the input of the loss; ``B`` is the number of segments."""
        is_training = bool(self.model.training)
        verdicts = self.rollouts.play(
            inputs,
            self.num_generations if is_training else self.num_generations_eval,
            version=self.state.global_step,
            is_training=is_training,
        )
        num_pieces = self.args.steps_per_generation if is_training else 1
        batch = to_trl(build_samples(verdicts), self._tokenizer.pad_token_id, multiple_of=num_pieces)
        batch = {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}
        self._log_rollouts(verdicts)
        with torch.no_grad():
            self._add_logprobs(batch)
        return batch

    def _save_checkpoint(self, model: CausalLM, trial: object) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        (folder / STATE_FILE).write_text(json.dumps(self.rollouts.to_dict()), encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            path = Path(checkpoint) / STATE_FILE
            if not path.is_file():
                raise CorruptDataError(f"{checkpoint} has no {STATE_FILE}; it is a checkpoint of another trainer")
            self.rollouts.load_dict(read_json(path.read_text(encoding="utf-8")))

    # -------------------------------------------------------------------------------------------------- private

    def _add_logprobs(self, batch: dict[str, Tensor]) -> None:
        """Add log-probabilities before the update, weights for the engine's mismatch, and the reference's scores."""
        num_uses = self.args.steps_per_generation * self.num_iterations
        is_on_policy = self.args.gradient_accumulation_steps % num_uses == 0
        if self.vllm_importance_sampling_correction or not is_on_policy:
            batch["old_per_token_logps"] = old = self._logprobs(self.model, batch)
            sampled, mask = batch["sampling_per_token_logps"], batch["tool_mask"]
            self._log_metrics(gap_metrics(old, sampled, mask))
            if self.vllm_importance_sampling_correction:
                batch["importance_sampling_ratio"] = engine_ratio(
                    old,
                    sampled,
                    mask,
                    self.vllm_importance_sampling_mode,
                    self.vllm_importance_sampling_clip_min,
                    self.vllm_importance_sampling_clip_max,
                )
                self._log_metrics(ratio_metrics(batch["importance_sampling_ratio"], mask))
        if self.beta:
            batch["ref_per_token_logps"] = self._reference_logprobs(batch)

    def _reference_logprobs(self, batch: dict[str, Tensor]) -> Tensor:
        if self.ref_model is not None:
            return self._logprobs(self.ref_model, batch)
        adapted = self.accelerator.unwrap_model(self.model)
        with use_adapter(adapted, adapter_name="ref" if "ref" in adapted.peft_config else None):
            return self._logprobs(self.model, batch)

    def _logprobs(self, model: CausalLM, batch: dict[str, Tensor]) -> Tensor:
        logprobs, _, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].size(1),
            batch_size=self.args.per_device_train_batch_size,
        )
        picked: Tensor = logprobs
        return picked

    def _log_rollouts(self, verdicts: Sequence[FilteredGroup]) -> None:
        self._log_metrics(rollout_metrics(verdicts, self.state.global_step))
        if self.model.training:
            self.state.num_input_tokens_seen += num_tokens(verdicts)
        self._metrics[self._mode]["num_tokens"] = [self.state.num_input_tokens_seen]
        if self.log_completions:
            table = completion_table(verdicts)
            self._logs["prompt"].extend(table["prompt"])
            self._logs["completion"].extend(table["completion"])
            self._logs["advantages"].extend(table["advantage"])
            self._logs["rewards"]["episode_return"].extend(table["reward"])

    def _log_metrics(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._metrics[self._mode][name].append(value)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"


def _environment_return(**columns: object) -> list[float | None]:
    """Reward function that TRL requires but never calls, because the rewards are in the episodes."""
    raise AssertionError("rewards come from the environment's turns")


def _check_rollouts(settings: CreditSettings, sampling: SamplingParams, group_size: int) -> None:
    """Check what agentgym's own trainer checks: missing columns, own components, greedy sampling, groups of one."""
    group = replace(settings.group, group_size=group_size)
    check_columns(settings.credit, made=())
    check_own_components(settings.credit)
    TrainConfig(recipe="trl", env=EnvConfig(id="trl"), group=group, sampling=sampling, credit=settings.credit)


# ------------------------------------------------ metrics of rollouts in TRL's log, and rows of its completions table


def rollout_metrics(verdicts: Sequence[FilteredGroup], version: int) -> dict[str, float]:
    """Return TRL's metrics of rewards and lengths over the valid episodes, and our metrics under ``rollouts/``.

    ``frac_reward_zero_std`` is the share of valid episodes in groups of equal returns. Numbers of strategies, which do
    not act here, are left out. Means are NaN if no episode is valid; TRL leaves NaN out of its averages.

    Args:
        version: version of the policy that is trained.
    """
    returns = [t.reward or 0.0 for verdict in verdicts for t in verdict.group.valid]
    lengths = [
        sum(len(turn.completion.token_ids) for turn in t.turns) for verdict in verdicts for t in verdict.group.valid
    ]
    is_flat = [
        len({t.reward for t in verdict.group.valid}) == 1
        for verdict in verdicts
        for _ in range(len(verdict.group.valid))
    ]
    ours = describe_rollouts(verdicts, version)
    return {
        "reward": fmean(returns) if returns else math.nan,
        "reward_std": stdev(returns) if len(returns) > 1 else math.nan,
        "frac_reward_zero_std": fmean(is_flat) if is_flat else math.nan,
        "completions/mean_length": fmean(lengths) if lengths else math.nan,
        "completions/min_length": min(lengths, default=math.nan),
        "completions/max_length": max(lengths, default=math.nan),
        **{f"rollouts/{name}": value for name, value in ours.items() if not name.startswith(_OF_STRATEGIES)},
    }


def num_tokens(verdicts: Sequence[FilteredGroup]) -> int:
    """Return the number of prompt tokens and sampled tokens of the valid episodes, as TRL counts them."""
    segments = [part for verdict in verdicts for one in verdict.group.valid for part in one.segments if part.turns]
    prompts = sum(len(part.turns[0].prompt_ids) for part in segments)
    return prompts + sum(len(turn.completion.token_ids) for part in segments for turn in part.turns)


def gap_metrics(logprob_old: Tensor, logprob_rollout: Tensor, mask: Tensor) -> dict[str, float]:
    """Return the difference between the trainer's and the engine's log-probabilities, under TRL's metric names."""
    gap = (logprob_old - logprob_rollout).abs()[mask.bool()]
    prefix = "sampling/sampling_logp_difference"
    if not gap.numel():
        return {f"{prefix}/mean": math.nan, f"{prefix}/max": math.nan}
    return {f"{prefix}/mean": gap.mean().item(), f"{prefix}/max": gap.max().item()}


def ratio_metrics(ratio: Tensor, mask: Tensor) -> dict[str, float]:
    """Return the weights for the engine's mismatch, of trained tokens or of rows that have some, under TRL's names."""
    used = ratio[mask.bool()] if ratio.size(1) > 1 else ratio[mask.bool().any(dim=1)]
    prefix, known = "sampling/importance_sampling_ratio", used.numel() > 0
    return {
        f"{prefix}/min": used.min().item() if known else math.nan,
        f"{prefix}/mean": used.mean().item() if known else math.nan,
        f"{prefix}/max": used.max().item() if known else math.nan,
    }


def completion_table(verdicts: Sequence[FilteredGroup]) -> dict[str, list[Json]]:
    """Return the columns of TRL's completions table, a row per episode; failed episodes have a reward of NaN."""
    episodes = [
        (trajectory, fmean(turn.advantage for turn in credit) if credit else 0.0)
        for verdict in verdicts
        for trajectory, credit in zip(verdict.group.trajectories, verdict.to_record().credit, strict=True)
    ]
    return {
        "prompt": [_messages(trajectory.observation) for trajectory, _ in episodes],
        "completion": [_said(trajectory) for trajectory, _ in episodes],
        "reward": [math.nan if trajectory.reward is None else trajectory.reward for trajectory, _ in episodes],
        "advantage": [advantage for _, advantage in episodes],
    }


def _said(trajectory: Trajectory) -> list[dict[str, str]]:
    return [row for turn in trajectory.turns for row in _messages([turn.action, *turn.replies])]


def _messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.text} for message in messages]
