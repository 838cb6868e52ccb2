"""The evaluation runner: runs each task, records every episode, computes intervals, and can resume."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym.canonical import read_json
from agentgym.env.env import Env
from agentgym.errors import CorruptDataError, RunStoppedError, UsageError
from agentgym.evals.episodes import RECORD_NAME, EpisodeFiles, read_rows, write_json
from agentgym.evals.ledger import add_attempt, ledger_of
from agentgym.evals.prices import Price, cost_text, sum_costs
from agentgym.evals.repeats import repeats_of
from agentgym.evals.scoring import BY_ENV, Scoring
from agentgym.evals.statistics import Estimate, clustered_interval, mean_interval
from agentgym.rollout.agent import Agent, MakeAgent
from agentgym.rollout.folder_lock import locked
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.in_flight import InFlight
from agentgym.rollout.pool import Pool
from agentgym.rollout.pulse import Pulse
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.roles import NO_ROLES, Cast
from agentgym.rollout.seeds import derive_seed
from agentgym.settings import checked
from agentgym.types import Status, Task, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSummary:
    """The result of an evaluation, from its valid episodes.

    Success, return, score and their intervals weigh every task alike: they are means over tasks of each task's mean, as
    pass@1 is. Turns, tokens, seconds and costs are means per episode. Without failures both weights are the same.
    """

    suite_or_env: str
    policy: str
    num_episodes: int
    """All episodes, failed ones included."""
    num_failed: int
    """Episodes whose infrastructure failed; they count neither as success nor as failure."""
    success: float
    success_low: float
    """Lower end of the 95 % Wilson interval of :attr:`success`. Episodes of the same task form a cluster."""
    success_high: float
    mean_return: float
    """Mean over tasks of each task's mean return."""
    mean_turns: float
    mean_tokens: float
    """Mean number of sampled tokens per episode; 0 for a scripted policy."""
    statuses: dict[str, int]
    """Number of episodes per status that occurred."""
    run_dir: str
    num_tasks: int = 0
    """Tasks with a valid episode."""
    return_low: float | None = None
    """Lower end of the 95 % bootstrap interval of :attr:`mean_return` over tasks; None in evaluations made before."""
    return_high: float | None = None
    mean_score: float | None = None
    """Mean score, partial credit included, if there are scorers; None if only the environment defines success."""
    mean_prompt_tokens: float = 0.0
    """Mean number of tokens that turns added to the prompt. For an endpoint: the prompt tokens it reports, which
    include whole conversations."""
    mean_invalid_turns: float = 0.0
    mean_truncated_completions: float = 0.0
    """Mean number of completions per episode that ended at a limit of tokens, such as ``--max-new-tokens``."""
    mean_tool_errors: float = 0.0
    mean_seconds: float = field(default=0.0, compare=False)
    """Mean seconds of sampling and of the environment per episode."""
    models: list[str] = field(default_factory=list)
    """Models that servers said had answered, such as a dated version of the one asked."""
    mean_attempts: float = 1.0
    """Mean number of attempts per episode."""
    mean_cost: float | None = None
    """Mean cost per episode in money; None if it is not known."""
    cost: float | None = None
    """Cost of the valid episodes, each without attempts that the infrastructure failed; None if it is not known."""
    spent: float | None = None
    """Money spent in all: also on failed, repeated and interrupted episodes, opponents, judges, and the client's own
    checks (:mod:`agentgym.evals.ledger`). None if it is not known."""
    num_unpriced: int = 0
    """Completions that are not in :attr:`spent`: their model has no price, or the server reports no token counts."""
    counts_tokens: bool = True
    """False if an endpoint does not report the tokens of an episode."""
    repeats: dict[str, dict[str, float]] = field(default_factory=dict)
    """Statistics by number of trials, if tasks have several episodes: ``pass_at``, ``pass_all``, with scores
    ``best_of`` and ``chosen``, and with reference answers ``majority`` (:func:`~agentgym.evals.repeats.repeats_of`)."""
    by_type: dict[str, dict[str, float]] = field(default_factory=dict)
    """``num_episodes``, ``success``, ``success_low``, ``success_high`` and ``mean_turns`` by task type, if there are
    several types."""

    @property
    def success_at_worst(self) -> float:
        """Success if every failed episode were a loss, which :attr:`success` leaves out."""
        return self.success * (self.num_episodes - self.num_failed) / self.num_episodes

    @property
    def failed_text(self) -> str:
        """Number and share of failed episodes, and success if they were losses; empty if none failed."""
        if not self.num_failed:
            return ""
        share = self.num_failed / self.num_episodes
        return f"{self.num_failed} failed ({share:.1%}; success {self.success_at_worst:.1%} if they were losses)"

    @property
    def spent_text(self) -> str:
        """The money spent in all: "at least" where the cost of some requests is not known."""
        least = "at least " if self.num_unpriced and self.spent is not None else ""
        return f"{least}{cost_text(self.spent)}"


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
    on_attempt: Callable[[Trajectory], None] = lambda trajectory: None,
    roles: Cast = NO_ROLES,
    scoring: Scoring = BY_ENV,
    price: Price | None = None,
) -> EvalSummary:
    """Run each task once and write ``episodes.jsonl``, ``episodes.jsonl.gz`` and ``summary.json`` to ``out_dir``.

    An episode whose infrastructure fails is retried. If it still fails, it is counted separately, not as a failure of
    the policy. A killed evaluation loses the running episodes. ``resume`` runs these and the failed ones again.

    Args:
        tasks: the tasks in order. A task's index and ``seed`` determine the seed of the policy's sampling.
        pool: pool of environments, which stays open.
        make_agent: makes the policy's agent for an episode.
        out_dir: the evaluation's folder; without ``resume``, files of an earlier evaluation are replaced.
        suite_or_env, policy: names for the summary.
        seed: seed of the policy's sampling.
        group_config: retries, limits and failure rate; its ``group_size`` and ``min_valid`` are taken as 1.
        resume: keep the valid episodes in ``out_dir``.
        on_episode: called after each new episode (not for those kept by ``resume``).
        on_attempt: called after each attempt at an episode, also those that fail and are repeated.
        roles: models that play sub-agents, or other players of a game.
        scoring: scorers that define success; by default the environment does.
        price: price of the policy's tokens.

    Raises:
        UsageError: there are no tasks, a game has no opponent, or another process writes to ``out_dir``.
        RunStoppedError: too many episodes failed.
        CorruptDataError: the files to resume from cannot be read.
    """
    if not tasks:
        raise UsageError("there are no tasks to evaluate on")
    scoring.check_tasks(tasks)
    with locked(out_dir):
        files, keys = EpisodeFiles(out_dir, resume=resume, price=price), _keys(tasks, seed)
        kept = files.groups
        left = [(at, task) for at, task in enumerate(tasks) if keys[at] not in files.rows]
        if left:
            await scoring.check_ready()

        config = replace(group_config, group_size=1, min_valid=1)
        in_flight = InFlight(config.num_envs)
        pulse = Pulse(out_dir, in_flight, total=len(left))

        def count(trajectory: Trajectory) -> None:
            add_attempt(policy, trajectory)
            on_attempt(trajectory)

        def keep(request: RolloutRequest, trajectory: Trajectory) -> None:
            refuse_self_play(request, trajectory)
            pulse.count(request, trajectory)
            files.add(TrajectoryGroup(ordinal=request.ordinal, task=request.task, trajectories=(trajectory,)))
            on_episode(trajectory)

        pulse.start()
        try:
            await run_groups(
                left,
                pool,
                make_agent,
                config,
                seed=seed,
                on_episode=keep,
                on_attempt=count,
                roles=roles,
                in_flight=in_flight,
                kept=kept,
            )
        finally:
            await pulse.stop()
        await files.score(scoring)
        return _finish(files, keys, out_dir, suite_or_env, policy)


def refuse_self_play(request: RolloutRequest, trajectory: Trajectory) -> None:
    """Raise an error for an episode of a game in which the policy plays every player.

    Raises:
        UsageError: it is such an episode; the message names the ways to evaluate the game.
    """
    if trajectory.seed == request.seed:
        return
    if request.roles:
        raise UsageError(
            f"{trajectory.env_id}: beside {', '.join(request.roles)} the policy plays several players, and an "
            "evaluation is of one: name a policy for each other player (roles.PLAYER=POLICY), or roles.opponent for all"
        )
    raise UsageError(
        f"{trajectory.env_id} waits for the moves of all its players: evaluate against an opponent of the "
        "environment (its argument opponent, or earlier of SkillChain-v0; of a training run eval.kwargs.opponent), "
        "or against another policy (agentgym eval --opponent)"
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
    """Write the files of :func:`evaluate` for episodes that ran elsewhere.

    Args:
        groups: one group per task, with one episode and the seeds of :func:`evaluate`.

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
    return write_summary(rows, suite_or_env=suite_or_env, policy=policy, run_dir=out_dir)


def write_summary(rows: Sequence[dict[str, Any]], *, suite_or_env: str, policy: str, run_dir: Path) -> EvalSummary:
    """Summarise rows with the money spent in their folder, and write ``summary.json``.

    Raises:
        RunStoppedError: no episode is valid, so there is nothing to summarise.
    """
    summary = summarise(rows, suite_or_env=suite_or_env, policy=policy, run_dir=run_dir)
    ledger = ledger_of(run_dir)
    if ledger is not None and (spent := ledger.spent()) is not None:
        summary = replace(summary, spent=spent.cost, num_unpriced=spent.num_unknown)
    write_json(run_dir / "summary.json", asdict(summary))
    return summary


def summarise(rows: Sequence[dict[str, Any]], *, suite_or_env: str, policy: str, run_dir: Path) -> EvalSummary:
    """Summarise rows of ``episodes.jsonl``.

    Raises:
        RunStoppedError: no episode is valid, so there is nothing to summarise.
    """
    evidence = [row for row in rows if Status(row["status"]).is_evidence]
    if not evidence:
        reasons = Counter(row["error"] for row in rows).most_common(1)
        raise RunStoppedError(f"none of {len(rows)} episodes is valid; most frequent error: {reasons[0][0]}")
    tasks = _by_task(evidence)
    success = success_of(evidence)
    returns = _over_tasks(tasks, "return")
    return_interval = mean_interval(returns)
    is_scored = all("score" in row for row in evidence)

    def mean(name: str) -> float:
        # an exact sum does not depend on the order in which episodes ended
        return math.fsum(row.get(name, 0) for row in evidence) / len(evidence)

    return EvalSummary(
        suite_or_env=suite_or_env,
        policy=policy,
        num_episodes=len(rows),
        num_failed=len(rows) - len(evidence),
        success=success.value,
        success_low=success.low,
        success_high=success.high,
        mean_return=round(math.fsum(returns) / len(returns), 12) + 0.0,  # no -2e-16 where costs and rewards cancel
        return_low=return_interval.low,
        return_high=return_interval.high,
        mean_turns=mean("num_turns"),
        mean_tokens=mean("num_tokens"),
        statuses=dict(sorted(Counter(str(row["status"]) for row in rows).items())),
        run_dir=str(run_dir),
        num_tasks=len(tasks),
        mean_score=fmean(_over_tasks(tasks, "score")) if is_scored else None,
        mean_prompt_tokens=mean("num_prompt_tokens"),
        mean_invalid_turns=mean("num_invalid_turns"),
        mean_truncated_completions=mean("num_truncated_completions"),
        mean_tool_errors=mean("num_tool_errors"),
        mean_seconds=mean("seconds"),
        models=sorted({name for row in rows for name in row.get("models", ())}),
        mean_attempts=fmean(row.get("num_attempts", 1) for row in evidence),
        mean_cost=None if (of_evidence := sum_costs(evidence)) is None else of_evidence / len(evidence),
        cost=of_evidence,
        counts_tokens=all(row.get("has_tokens", True) or not row["num_turns"] for row in evidence),
        repeats=repeats_of(tasks),
        by_type=_by_type(evidence),
    )


def success_of(evidence: Sequence[dict[str, Any]]) -> Estimate:
    """Return the success of valid episodes with its interval. Every task has the same weight."""
    return clustered_interval([bool(row["success"]) for row in task] for task in _by_task(evidence))


def _over_tasks(tasks: Sequence[Sequence[Mapping[str, Any]]], name: str) -> list[float]:
    """Return the mean of a number in each task's episodes. The sums are exact, so that no order matters."""
    return [math.fsum(row[name] for row in some) / len(some) for some in tasks]


def _by_task(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, object]]]:
    tasks: dict[tuple[str, str, str], list[dict[str, object]]] = {}
    for row in rows:
        tasks.setdefault((row.get("part", ""), row["task_id"], row["content_hash"]), []).append(row)
    return list(tasks.values())


def _by_type(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    types: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        types.setdefault(row.get("part") or row.get("task_type", ""), []).append(row)
    if len(types) == 1:
        return {}
    found = {}
    for name, some in sorted(types.items()):
        success = success_of(some)
        found[name] = {
            "num_episodes": float(len(some)),
            "success": success.value,
            "success_low": success.low,
            "success_high": success.high,
            "mean_turns": fmean(row["num_turns"] for row in some),
        }
    return found


def is_complete(out_dir: Path, parts: Sequence[Path]) -> bool:
    """Return True for a finished evaluation without a failed episode, of which a resume plays nothing.

    Args:
        parts: folders of its episodes; ``out_dir`` itself if it has one part.
    """
    try:
        summary = load_summary(out_dir)
    except CorruptDataError:
        return False
    has_records = all((part / RECORD_NAME).is_file() for part in parts)
    num_rows = sum(len(read_rows(part)) for part in parts)
    return has_records and not summary.num_failed and num_rows == summary.num_episodes


def complete_policy(env: Env, seed: int) -> Agent:
    """Refuse to play: the policy of a complete evaluation, which needs no model."""
    raise UsageError("this evaluation is complete, but its tasks have changed since; begin another one")


def load_summary(out_dir: Path) -> EvalSummary:
    """Read ``summary.json``.

    Raises:
        CorruptDataError: the file is missing or not a summary.
    """
    path = out_dir / "summary.json"
    try:
        return checked(EvalSummary, read_json(path.read_text(encoding="utf-8")), ignores_unknown=True)
    except FileNotFoundError:
        raise CorruptDataError(f"no summary at {path}; the evaluation did not finish") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{path} is not an evaluation's summary ({error!r})") from error
