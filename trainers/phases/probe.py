"""Probe the training tasks before RL, and train only on those that are sometimes solved.

Groups whose episodes all fail or all succeed give no gradient. A probe plays every training task ``strategy.probe``
times with the policy before RL and leaves out tasks that were always or never solved. It passes the success rates of
the others to task sources and budgets. ``probe.json`` in the run's folder has the results of all tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, RunStoppedError
from agentgym.evals.statistics import pass_at
from agentgym.rollout.group import run_groups
from agentgym.rollout.record import GroupRecord, probe_record_path, read_records, replace_text, write_records
from agentgym.rollout.replay import BEFORE_RL, RecordRef
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.strategies.history import Visit
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run.env import RunEnv, named
from agentgym.trainers.run.run import Run

Counts = Mapping[str, tuple[int, int]]
"""Numbers of valid episodes and of successes, by task id."""


async def probe_tasks(run: Run, log: Log) -> None:
    """Probe every environment with ``strategy.probe``, and restrict its training tasks. All ranks must call this.

    A resumed run reads the results of its first process.

    Raises:
        RunStoppedError: no task is sometimes solved, or most episodes failed.
    """
    for env in run.envs:
        if env.config.strategy.probe:
            counts = await run.ranks.from_main(lambda env=env: _counts(run, env, log))  # type: ignore[misc]
            kept = [task for task in env.train_tasks if _is_mixed(counts.get(task.id, (0, 0)))]
            log.say(_line(env, counts, len(kept)))
            if not kept:
                raise RunStoppedError(
                    f"none of {len(env.train_tasks)} tasks is solved in some of {env.config.strategy.probe} episodes "
                    "and not in others, so RL has nothing to compare: take easier or harder tasks (env.kwargs), or a "
                    "larger strategy.probe"
                )
            pool = await run.ranks.from_main(lambda env=env: _pool(run, env))  # type: ignore[misc]
            places = {at: pool[task.id] for at, task in enumerate(kept) if task.id in pool}
            env.keep_tasks(kept, [Visit(BEFORE_RL, *counts[task.id]) for task in kept], places)


async def _counts(run: Run, env: RunEnv, log: Log) -> Counts:
    path = run.run_dir / f"{named('probe', env.name)}.json"
    if path.is_file():
        return _read(path)
    config = env.config
    log.begin("probe", len(env.train_tasks) * config.strategy.probe)
    groups = await run_groups(
        list(enumerate(env.train_tasks)),
        env.pool,
        run.make_agent(env),
        replace(config.group, group_size=config.strategy.probe, min_valid=1),
        seed=derive_seed(config.seed, "probe"),
        on_episode=lambda request, trajectory: log.add_episode("probe", trajectory),
    )
    if config.strategy.keeps_probe:  # before the results, which say that the probe is done
        write_records(probe_record_path(run.run_dir, env.name), (GroupRecord(group=group) for group in groups))
    counts = {
        group.task.id: (len(group.valid), sum(bool(member.success) for member in group.valid)) for group in groups
    }
    replace_text(path, json.dumps(counts, indent=1) + "\n")
    return counts


async def _pool(run: Run, env: RunEnv) -> Mapping[str, Sequence[RecordRef]]:
    """Return the places of the probe's successes by task id; none if they are not replayed."""
    if not env.config.strategy.keeps_probe:
        return {}
    groups = [record.group for record in read_records(probe_record_path(run.run_dir, env.name))]
    return {
        group.task.id: [
            RecordRef(BEFORE_RL, group.ordinal, at) for at, member in enumerate(group.trajectories) if member.success
        ]
        for group in groups
    }


def _read(path: Path) -> Counts:
    try:
        saved = read_json(path.read_text(encoding="utf-8"))
        return {str(task): (int(size), int(num_successes)) for task, (size, num_successes) in saved.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptDataError(
            f"{path} cannot be read ({error}); move it away, and the tasks are probed again"
        ) from error


def _is_mixed(count: tuple[int, int]) -> bool:
    size, num_successes = count
    return 0 < num_successes < size


def _line(env: RunEnv, counts: Counts, num_kept: int) -> str:
    known = [count for count in counts.values() if count[0]]
    never = sum(not num_successes for _, num_successes in known)
    always = sum(num_successes == size for size, num_successes in known)
    of = f" of {env.name}" if env.name else ""
    return (
        f"probe{of}: {len(counts)} tasks, {_passes(known, env.config.strategy.probe)}; {num_kept} are trained on, "
        f"{never} were never solved, {always} always"
    )


def _passes(known: Sequence[tuple[int, int]], most: int) -> str:
    sizes = [k for k in dict.fromkeys((1, most)) if all(size >= k for size, _ in known)]
    return ", ".join(f"pass@{k} {fmean(pass_at(size, won, k) for size, won in known):.3f}" for k in sizes)
