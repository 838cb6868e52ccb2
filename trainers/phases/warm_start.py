"""The warm start: the policy is fine-tuned on demonstrations of the environment's oracle before RL."""

from __future__ import annotations

from agentgym.rollout.schedule import TaskSchedule
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.data.demos import collect_demos
from agentgym.trainers.distributed.checkpoint import TrainState, save_state
from agentgym.trainers.phases.sft import num_sft_steps, sft_rows, sft_steps
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run import Run
from agentgym.types import Segment


async def warm_start(run: Run, state: TrainState, log: Log) -> None:
    """Fine-tune on demonstrations, from ``state.step`` on, with a checkpoint now and then."""
    config = run.config
    rows = await _demo_rows(run, log)
    num_steps = num_sft_steps(config.sft, len(rows))
    log.begin("sft", num_steps, state.step)
    for metrics in sft_steps(run.model, state.optimizer, rows, config.sft, config.seed, state.step):
        state.step += 1
        log.log("sft", state.step, metrics)
        if state.step % config.checkpoint_every == 0 and state.step < num_steps:
            save_state(run.run_dir, state, run.ranks)


async def _demo_rows(run: Run, log: Log) -> list[Segment]:
    config = run.config
    schedule = TaskSchedule(run.train_tasks, derive_seed(config.seed, "demo tasks"))
    log.begin("demos", config.sft.num_demos)
    demos = await run.ranks.from_main(
        lambda: collect_demos(
            schedule.take(0, config.sft.num_demos),
            run.pool,
            run.renderer,
            noise=config.sft.noise,
            max_context_tokens=config.model.max_context_tokens,
            max_new_tokens=config.sampling.max_new_tokens,
            context=config.context,
            seed=config.seed,
            on_episode=lambda _: log.advance("demos"),
        )
    )
    rows = sft_rows(demos)
    share = sum(bool(demo.success) for demo in demos) / max(1, len(demos))
    num_tokens = sum(len(row.token_ids) for row in rows) / max(1, len(rows))
    log.say(f"{len(demos)} demonstrations, {share:.0%} successful, {num_tokens:.0f} tokens each")
    return rows
