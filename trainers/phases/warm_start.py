"""The warm start: the policy is fine-tuned on demonstrations before RL."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.trainers.distributed.checkpoint import TrainState, save_state
from agentgym.trainers.phases.sft import num_sft_steps, sft_steps
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run import Run
from agentgym.trainers.sft.rows import SftRow
from agentgym.trainers.types import Metrics


def warm_start(run: Run, state: TrainState, rows: Sequence[SftRow], log: Log) -> None:
    """Fine-tune on demonstrations, from ``state.step`` on, with a checkpoint now and then."""
    config = run.config
    num_steps = num_sft_steps(config.sft, len(rows))
    log.begin("sft", num_steps, state.step)
    if num_steps == 0:
        log.say(f"note: no warm start, {len(rows)} rows are fewer than sft.batch_size={config.sft.batch_size}")

    def after_step(metrics: Metrics) -> None:
        state.step += 1
        log.log("sft", state.step, metrics)
        if state.step % config.checkpoint_every == 0 and state.step < num_steps:
            save_state(run.run_dir, state, run.ranks)

    if config.sft.trainer == "trl":
        from agentgym.trainers.trl.sft import trl_sft

        trl_sft(run.model, run.tokenizer, state.optimizer, rows, config, state.step, after_step)
        return
    precision = config.loss.precision
    for metrics in sft_steps(run.model, state.optimizer, rows, config.sft, config.seed, state.step, precision):
        after_step(metrics)
