"""Evaluation: every task once, with intervals, resumable, and a trace of each episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, RunStoppedError, UsageError
from agentgym.evals.episodes import EpisodeFiles, write_json
from agentgym.evals.statistics import wilson_interval
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.folder_lock import locked
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import Pool
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.seeds import derive_seed
from agentgym.types import Status, Task, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSummary:
    """The result of an evaluation. Rates and means are over valid episodes."""

    suite_or_env: str
    policy: str
    num_episodes: int
    """All episodes, failed ones included."""
    num_failed: int
    """Episodes whose infrastructure failed; they count neither as success nor as failure."""
    success: float
    success_low: float
    """Lower end of the 95 % Wilson interval."""
    success_high: float
    mean_return: float
    mean_turns: float
    mean_tokens: float
    """Mean number of tokens the policy sampled in an episode; 0 for a scripted policy."""
    statuses: dict[str, int]
    """Number of episodes per status that occurred."""
    run_dir: str


async def evaluate(  # noqa: PLR0913  (the names at the call are the documentation)
    tasks: Sequence[Task],
    pool: Pool,
    make_agent: MakeAgent,
    *,
    out_dir: Path,
    suite_or_env: str,
    policy: str,
    seed: int,
    group_config: GroupConfig,
    resume: bool = False,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
    opponent: MakeAgent | None = None,
) -> EvalSummary:
    """Play each task once and write ``episodes.jsonl``, ``episodes.jsonl.gz`` and ``summary.json`` to ``out_dir``.

    An episode whose infrastructure fails is retried. If it still fails it is counted apart, not as a failure of the
    policy. A killed evaluation loses the episodes in flight. ``resume`` plays these and the failed ones again.

    Args:
        tasks: the tasks in order; a task's position and ``seed`` fix the seed of the policy's sampling.
        pool: where tasks are played; stays open.
        out_dir: the evaluation's folder; without ``resume`` what an earlier evaluation left there is replaced.
        suite_or_env, policy: names for the summary.
        group_config: retries, limits and failure rate; its ``group_size`` and ``min_valid`` are taken as 1.
        on_episode: called after each episode played now (not for those kept by ``resume``).
        opponent: against whom a game is played that waits for the moves of all its players.

    Raises:
        UsageError: no tasks, a game without an opponent, or another process writes to ``out_dir``.
        RunStoppedError: too many episodes failed, or all.
        CorruptDataError: the files to resume from cannot be read.
    """
    if not tasks:
        raise UsageError("there are no tasks to evaluate on")
    with locked(out_dir):
        files = EpisodeFiles(out_dir, resume=resume)
        keys = _keys(tasks, seed)
        left = [(at, task) for at, task in enumerate(tasks) if keys[at] not in files.rows]

        def keep(request: RolloutRequest, trajectory: Trajectory) -> None:
            refuse_self_play(request, trajectory)
            files.add(TrajectoryGroup(ordinal=request.ordinal, task=request.task, trajectories=(trajectory,)))
            on_episode(trajectory)

        config = replace(group_config, group_size=1, min_valid=1)
        await run_groups(left, pool, make_agent, config, seed=seed, on_episode=keep, opponent=opponent)
        return _finish(files, keys, out_dir, suite_or_env, policy)


def refuse_self_play(request: RolloutRequest, trajectory: Trajectory) -> None:
    """Refuse an episode of a game in which the policy plays every player.

    Raises:
        UsageError: naming the ways to evaluate such a game.
    """
    if trajectory.seed != request.seed:
        raise UsageError(
            f"{trajectory.env_id} waits for the moves of all its players: evaluate against an opponent of the "
            "environment (its argument opponent; of a training run eval.kwargs.opponent), or against another "
            "policy (agentgym eval --opponent)"
        )


def write_evaluation(
    groups: Sequence[TrajectoryGroup],
    tasks: Sequence[Task],
    *,
    out_dir: Path,
    suite_or_env: str,
    policy: str,
    seed: int,
) -> EvalSummary:
    """Write what :func:`evaluate` writes, of episodes that were played elsewhere.

    Args:
        groups: one for each task, of one episode with the seeds of :func:`evaluate`.

    Raises:
        UsageError: another process writes to ``out_dir``.
        RunStoppedError: no episode is valid.
    """
    with locked(out_dir):
        files = EpisodeFiles(out_dir, resume=False)
        for group in groups:
            files.add(group)
        return _finish(files, _keys(tasks, seed), out_dir, suite_or_env, policy)


def _keys(tasks: Sequence[Task], seed: int) -> list[tuple[str, str, int]]:
    return [(task.id, task.content_hash, derive_seed(seed, at, 0)) for at, task in enumerate(tasks)]


def _finish(
    files: EpisodeFiles, keys: Sequence[tuple[str, str, int]], out_dir: Path, suite_or_env: str, policy: str
) -> EvalSummary:
    files.finish()
    rows = [files.rows[key] for key in keys]
    summary = summarise(rows, suite_or_env=suite_or_env, policy=policy, run_dir=out_dir)
    write_json(out_dir / "summary.json", asdict(summary))
    return summary


def summarise(rows: Sequence[dict[str, Any]], *, suite_or_env: str, policy: str, run_dir: Path) -> EvalSummary:
    """Sum up rows of ``episodes.jsonl``.

    Raises:
        RunStoppedError: no episode is valid, so there is nothing to sum up.
    """
    evidence = [row for row in rows if Status(row["status"]).is_evidence]
    if not evidence:
        reasons = Counter(row["error"] for row in rows).most_common(1)
        raise RunStoppedError(f"no episode of {len(rows)} came to an end; most often: {reasons[0][0]}")
    success = wilson_interval(sum(bool(row["success"]) for row in evidence), len(evidence))

    def mean(name: str) -> float:
        return float(sum(row[name] for row in evidence)) / len(evidence)

    return EvalSummary(
        suite_or_env=suite_or_env,
        policy=policy,
        num_episodes=len(rows),
        num_failed=len(rows) - len(evidence),
        success=success.value,
        success_low=success.low,
        success_high=success.high,
        mean_return=mean("return"),
        mean_turns=mean("num_turns"),
        mean_tokens=mean("num_tokens"),
        statuses=dict(sorted(Counter(str(row["status"]) for row in rows).items())),
        run_dir=str(run_dir),
    )


def load_summary(out_dir: Path) -> EvalSummary:
    """Read ``summary.json``.

    Raises:
        CorruptDataError: it is missing or not a summary.
    """
    path = out_dir / "summary.json"
    try:
        values = read_json(path.read_text(encoding="utf-8"))
        return EvalSummary(**{field.name: values[field.name] for field in fields(EvalSummary)})
    except FileNotFoundError:
        raise CorruptDataError(f"no summary at {path}; the evaluation did not finish") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{path} is not an evaluation's summary ({error!r})") from error
