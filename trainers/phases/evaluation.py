"""Evaluation of the trained policy on the evaluation split; results go to the run's folder and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TypedDict

from agentgym.evals.runner import EvalSummary, evaluate, load_summary, refuse_self_play, write_evaluation
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run.env import RunEnv, named
from agentgym.trainers.run.run import Run
from agentgym.types import Task, Trajectory, TrajectoryGroup

LOGGED = ("success", "success_low", "success_high", "mean_return", "mean_turns")


async def evaluate_policy(run: Run, log: Log, label: str, step: int) -> float:
    """Evaluate the policy after ``step`` steps of RL on every environment, and return the mean of their success.

    The results are written to ``eval/label``, in a mixture to ``eval/label-NAME``. All ranks must call this. If all
    ranks sample, each plays its share of the tasks; else the first rank plays all of them.
    """
    found: dict[str, EvalSummary] = {}
    await run.roles.begin_step(step)
    for env in run.envs:
        found[env.name] = await _evaluate_in(run, env, log, label)
        log.say(_line(found[env.name], label, step, env))
    success = fmean(summary.success for summary in found.values())
    if label != "base":  # step 0 of the learning curve is the policy before RL
        row = {} if "" in found else {"success": success}
        for env in run.envs:
            row |= {f"{env.prefix}{name}": getattr(found[env.name], name) for name in LOGGED}
            passes = found[env.name].repeats.get("pass_at", {})
            row |= {f"{env.prefix}pass_at_{k}": value for k, value in passes.items() if k != "1"}
        log.log("eval", step, row)
    return success


class _About(TypedDict):
    out_dir: Path
    suite_or_env: str
    policy: str
    seed: int


async def _evaluate_in(run: Run, env: RunEnv, log: Log, label: str) -> EvalSummary:
    config = env.config
    tasks = list(env.eval_tasks[: config.eval.num_episodes]) * config.eval.repeats
    label = named(label, env.name)
    about: _About = {
        "out_dir": run.run_dir / "eval" / label,
        "suite_or_env": config.env.id,
        "policy": f"{config.recipe} {label} RL",
        "seed": derive_seed(config.seed, "evaluation"),
    }
    if not run.all_ranks_sample:
        return await run.ranks.from_main(lambda: _evaluate(run, env, log, label, tasks, about))
    mine: list[TrajectoryGroup] = []

    async def play() -> int:
        mine.extend(await _play_share(run, env, log, label, tasks, about["seed"]))
        return len(mine)

    counts = await run.ranks.from_all(play)
    groups = [group for played in run.ranks.to_first(mine, max(counts)) for group in played]

    async def write() -> EvalSummary:
        return write_evaluation(groups, tasks, **about)

    return await run.ranks.from_main(write)


async def _evaluate(run: Run, env: RunEnv, log: Log, label: str, tasks: list[Task], about: _About) -> EvalSummary:
    log.begin(f"evaluation {label}", len(tasks))
    return await evaluate(
        tasks,
        env.eval_pool,
        run.make_agent(env, env.config.eval.temperature),
        group_config=_single(env),
        roles=run.roles.cast(env),
        on_episode=lambda trajectory: log.add_episode(f"evaluation {label}", trajectory),
        **about,
    )


async def _play_share(
    run: Run, env: RunEnv, log: Log, label: str, tasks: list[Task], seed: int
) -> Sequence[TrajectoryGroup]:
    share = [(at, tasks[at]) for at in range(run.ranks.rank, len(tasks), run.ranks.count)]
    log.begin(f"evaluation {label}", len(share))

    def keep(request: RolloutRequest, trajectory: Trajectory) -> None:
        refuse_self_play(request, trajectory)
        log.add_episode(f"evaluation {label}", trajectory)

    agents, config = run.make_agent(env, env.config.eval.temperature), replace(_single(env), num_envs=run.num_episodes)
    cast = run.roles.cast(env)
    return await run_groups(share, env.eval_pool, agents, config, seed=seed, on_episode=keep, roles=cast)


def _single(env: RunEnv) -> GroupConfig:
    return replace(env.config.group, group_size=1, min_valid=1)


def _line(summary: EvalSummary, label: str, step: int, env: RunEnv) -> str:
    interval = f"{summary.success_low:.3f} to {summary.success_high:.3f}"
    when = {"base": "of the base model", "before": "before RL", "after": "after RL"}.get(label, f"after {step} steps")
    of = f" on {env.name}" if env.name else ""
    repeats = env.config.eval.repeats
    times = f", {repeats} times each" if repeats > 1 else ""
    tasks = f"{summary.num_episodes // repeats} {env.config.eval.split} tasks{times}"
    failed = f", {summary.num_failed} failed and not counted" if summary.num_failed else ""
    best = list(summary.repeats.get("pass_at", {}).items())[-1:]
    passes = "".join(f", pass@{k} {value:.3f}" for k, value in best)
    return f"success{of} {when}: {summary.success:.3f} ({interval}){passes}, {tasks}{failed}"


def base_success(run: Run) -> float | None:
    """Return the success of the untrained model, averaged over environments; None if it was not evaluated."""
    folders = [run.run_dir / "eval" / named("base", env.name) for env in run.envs]
    if not all((folder / "summary.json").is_file() for folder in folders):
        return None
    return fmean(load_summary(folder).success for folder in folders)
