"""Evaluation of the policy in training: on tasks of the evaluation split, into the run's folder and its metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentgym.evals.runner import EvalSummary, evaluate, load_summary
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run import Run

LOGGED = ("success", "success_low", "success_high", "mean_return", "mean_turns")


async def evaluate_policy(run: Run, log: Log, label: str, step: int) -> EvalSummary:
    """Evaluate the policy after ``step`` steps of RL into ``eval/label``; the other ranks wait for the first."""
    return await run.ranks.from_main(lambda: _evaluate(run, log, label, step))


async def _evaluate(run: Run, log: Log, label: str, step: int) -> EvalSummary:
    config = run.config
    tasks = list(run.eval_tasks[: config.eval.num_episodes])
    log.begin(f"evaluation {label}", len(tasks))
    summary = await evaluate(
        tasks,
        run.eval_pool,
        run.make_agent(replace(config.sampling, temperature=config.eval.temperature)),
        out_dir=run.run_dir / "eval" / label,
        suite_or_env=config.env.id,
        policy=f"{config.recipe} {label} RL",
        seed=derive_seed(config.seed, "evaluation"),
        group_config=replace(config.group, group_size=1, min_valid=1),
        on_episode=lambda trajectory: log.add_episode(f"evaluation {label}", trajectory),
    )
    if label != "base":  # the curve begins with the policy that RL begins with
        log.log("eval", step, {name: getattr(summary, name) for name in LOGGED})
    interval = f"{summary.success_low:.3f} to {summary.success_high:.3f}"
    when = {"base": "of the base model", "before": "before RL", "after": "after RL"}.get(label, f"after {step} steps")
    log.say(f"success {when}: {summary.success:.3f} ({interval}), {len(tasks)} {config.eval.split} tasks")
    return summary


def base_success(run_dir: Path) -> float | None:
    """Return the success of the model as it came, if it was evaluated."""
    folder = run_dir / "eval" / "base"
    return load_summary(folder).success if (folder / "summary.json").is_file() else None
