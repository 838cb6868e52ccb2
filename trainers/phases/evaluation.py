"""Evaluation of the policy in training: on tasks of the evaluation split, into the run's folder and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from agentgym.evals.runner import EvalSummary, evaluate, load_summary, refuse_self_play, write_evaluation
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run import Run
from agentgym.types import Task, Trajectory, TrajectoryGroup

LOGGED = ("success", "success_low", "success_high", "mean_return", "mean_turns")


async def evaluate_policy(run: Run, log: Log, label: str, step: int) -> EvalSummary:
    """Evaluate the policy after ``step`` steps of RL into ``eval/label``. All ranks must call.

    Where all ranks play, each plays its share of the tasks; else the first plays all of them.
    """
    config = run.config
    tasks = list(run.eval_tasks[: config.eval.num_episodes])
    about: _About = {
        "out_dir": run.run_dir / "eval" / label,
        "suite_or_env": config.env.id,
        "policy": f"{config.recipe} {label} RL",
        "seed": derive_seed(config.seed, "evaluation"),
    }
    if not run.do_all_play:
        return await run.ranks.from_main(lambda: _evaluate(run, log, label, step, tasks, about))
    shares = await run.ranks.from_all(lambda: _play_share(run, log, label, tasks, about["seed"]))
    groups = [group for share in shares for group in share]

    async def write() -> EvalSummary:
        return _say(run, log, label, step, write_evaluation(groups, tasks, **about))

    return await run.ranks.from_main(write)


class _About(TypedDict):
    out_dir: Path
    suite_or_env: str
    policy: str
    seed: int


async def _evaluate(run: Run, log: Log, label: str, step: int, tasks: list[Task], about: _About) -> EvalSummary:
    log.begin(f"evaluation {label}", len(tasks))
    summary = await evaluate(
        tasks,
        run.eval_pool,
        _agents(run),
        group_config=_single(run),
        on_episode=lambda trajectory: log.add_episode(f"evaluation {label}", trajectory),
        **about,
    )
    return _say(run, log, label, step, summary)


async def _play_share(run: Run, log: Log, label: str, tasks: list[Task], seed: int) -> Sequence[TrajectoryGroup]:
    share = [(at, tasks[at]) for at in range(run.ranks.rank, len(tasks), run.ranks.count)]
    log.begin(f"evaluation {label}", len(share))

    def keep(request: RolloutRequest, trajectory: Trajectory) -> None:
        refuse_self_play(request, trajectory)
        log.add_episode(f"evaluation {label}", trajectory)

    return await run_groups(
        share,
        run.eval_pool,
        _agents(run),
        _single(run),
        seed=seed,
        on_episode=keep,
    )


def _agents(run: Run) -> MakeAgent:
    return run.make_agent(replace(run.config.sampling, temperature=run.config.eval.temperature))


def _single(run: Run) -> GroupConfig:
    return replace(run.config.group, group_size=1, min_valid=1)


def _say(run: Run, log: Log, label: str, step: int, summary: EvalSummary) -> EvalSummary:
    if label != "base":  # the curve begins with the policy that RL begins with
        log.log("eval", step, {name: getattr(summary, name) for name in LOGGED})
    interval = f"{summary.success_low:.3f} to {summary.success_high:.3f}"
    when = {"base": "of the base model", "before": "before RL", "after": "after RL"}.get(label, f"after {step} steps")
    log.say(f"success {when}: {summary.success:.3f} ({interval}), {summary.num_episodes} {run.config.eval.split} tasks")
    return summary


def base_success(run_dir: Path) -> float | None:
    """Return the success of the model as it came, if it was evaluated."""
    folder = run_dir / "eval" / "base"
    return load_summary(folder).success if (folder / "summary.json").is_file() else None
