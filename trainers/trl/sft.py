"""The warm start in TRL's SFTTrainer, with our rows, their order, and our optimizer.

TRL computes the forward pass, the loss, the gradient and the step. It can mask tokens but not weight them.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback

from agentgym.errors import MissingExtraError, RunStoppedError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.row import Row
from agentgym.trainers.models.optimizer import learning_rate
from agentgym.trainers.sft.batches import SftBatches, num_sft_steps
from agentgym.trainers.trl.versions import check_trl
from agentgym.trainers.types import CausalLM, Metrics, Tokenizer

try:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
except ImportError as error:
    raise MissingExtraError("sft.trainer=trl", "trl") from error

_IGNORED = -100


def trl_sft(
    model: CausalLM,
    tokenizer: Tokenizer,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    config: TrainConfig,
    first_step: int,
    after_step: Callable[[Metrics], None],
) -> None:
    """Train from ``first_step`` on, as :func:`~agentgym.trainers.phases.sft.sft_steps` does.

    Args:
        rows: training rows whose weights are 0 or 1.
        after_step: called with the metrics of each optimizer step.

    Raises:
        MissingExtraError, UsageError: TRL is not installed, or not in a tested version.
    """
    check_trl("sft.trainer=trl")
    sft, num_steps = config.sft, num_sft_steps(config.sft, len(rows))
    if first_step >= num_steps:
        return
    batches = SftBatches(rows, sft.batch_size, config.seed)
    order = [index for step in range(first_step, num_steps) for index in batches.indices(step)]
    dataset = Dataset.from_list([_as_columns(row) for row in rows]).select(order)
    for group in optimizer.param_groups:  # of a resumed run they hold the rate of the last step
        group["lr"] = group["initial_lr"] = sft.optimizer.lr
    rates = LambdaLR(
        optimizer, lambda step: learning_rate(sft.optimizer, first_step + step, num_steps) / sft.optimizer.lr
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        _left_as_it_was(model),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    ):
        # transformers calls gradient_checkpointing by another name from 5.23 on, and TRL does not yet
        warnings.filterwarnings("ignore", message=".gradient_checkpointing. is deprecated", category=FutureWarning)
        trainer = SFTTrainer(
            model=model,
            args=_arguments(config, num_steps - first_step, folder),
            train_dataset=dataset,
            processing_class=tokenizer,
            optimizers=(optimizer, rates),
            callbacks=[_AfterStep(after_step)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    for group in optimizer.param_groups:
        del group["initial_lr"]


def _arguments(config: TrainConfig, num_steps: int, folder: str) -> object:
    return SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=config.sft.batch_size,
        max_steps=num_steps,
        max_grad_norm=config.sft.optimizer.max_grad_norm,
        train_sampling_strategy="sequential",
        max_length=None,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=config.seed % 2**32,
    )


@contextmanager
def _left_as_it_was(model: CausalLM) -> Iterator[None]:
    """Restore a model's mode and ``forward`` when the context ends; TRL replaces them."""
    was_training = model.training
    patched = {module for module in model.modules() if "forward" in vars(module)}
    try:
        yield
    finally:
        model.train(was_training)
        for module in model.modules():
            if module not in patched:
                vars(module).pop("forward", None)


def _as_columns(row: Row) -> dict[str, list[int]]:
    weights = row.over_tokens("loss_weight").tolist()
    labels = [token if weight else _IGNORED for token, weight in zip(row.token_ids, weights, strict=True)]
    return {"input_ids": list(row.token_ids), "labels": labels}


class _AfterStep(TrainerCallback):
    """Reports every logged step, and stops the run before a step whose gradient is not finite."""

    def __init__(self, after_step: Callable[[Metrics], None]) -> None:
        self._after_step = after_step

    def on_pre_optimizer_step(self, *_: object, model: CausalLM, **kwargs: object) -> None:  # type: ignore[override]
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            raise RunStoppedError("sft: the gradient is not finite; lower sft.optimizer.lr")

    def on_log(self, *_: object, logs: Mapping[str, float], **kwargs: object) -> None:  # type: ignore[override]
        if "loss" in logs:  # the last row sums up
            self._after_step({"loss": logs["loss"], "grad_norm": float(logs["grad_norm"]), "lr": logs["learning_rate"]})
