"""Evaluation of suites: a result over all parts, or the reason why a suite could not run.

::

    FOLDER/suite.json              the suite, its content hash, the policy
    FOLDER/[PART/]episodes.jsonl   one evaluation per part (:mod:`agentgym.evals.runner`); an only part needs none
    FOLDER/summary.json            the result over all parts
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from agentgym.canonical import read_json
from agentgym.env.actions import gold_action
from agentgym.errors import (
    AgentGymError,
    CorruptDataError,
    EnvError,
    RunStoppedError,
    UsageError,
    boundary,
    first_cause,
)
from agentgym.evals.episodes import read_rows, write_json
from agentgym.evals.play import Play, play_tasks
from agentgym.evals.runner import EvalSummary, write_summary
from agentgym.evals.suites import OpenPart, OpenSuite, Suite, mend_of, open_suite, require_machine
from agentgym.rollout.request import EpisodeLimits
from agentgym.settings import checked

SUITE_FILE = "suite.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """The result of a suite: a summary, or the reason why there is none."""

    suite: str
    """Name and version."""
    content_hash: str
    """Content hash of the suite; empty if its tasks are not available."""
    policy: str
    outcome: Literal["done", "cannot_run", "stopped"]
    """``cannot_run``: something is missing on this machine. ``stopped``: too many episodes failed because of the
    infrastructure."""
    reason: str = ""
    mend: str = ""
    """Advice in addition to the reason."""
    summary: EvalSummary | None = None
    parts: tuple[EvalSummary, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEvaluation:
    """The contents of ``suite.json``."""

    suite: Suite
    content_hash: str
    policy: str


async def run_suite(suite: Suite, play: Play) -> SuiteResult:
    """Evaluate a policy on a suite. Missing requirements and infrastructure failures are part of the result, not
    raised.
    """
    policy, out_dir = play.config.policy, play.out_dir
    content_hash = ""
    try:
        opened = open_suite(suite)
        content_hash = opened.content_hash
        require_machine(suite)
        for part in opened.parts:
            _try_first(part, needs_oracle=policy == "oracle")
    except AgentGymError as error:
        return _refused(suite, content_hash, policy, error, "cannot_run")
    write_suite(out_dir, SavedEvaluation(suite=suite, content_hash=content_hash, policy=policy))
    try:
        parts = [await _run_part(opened, part, play) for part in opened.parts]
    except (AgentGymError, BaseExceptionGroup) as error:
        cause = first_cause(error)
        if not isinstance(cause, AgentGymError):
            raise
        return _refused(suite, content_hash, policy, cause, "stopped")
    return finished(out_dir, SavedEvaluation(suite=suite, content_hash=content_hash, policy=policy), parts)


def write_suite(out_dir: Path, saved: SavedEvaluation) -> None:
    """Write ``suite.json``."""
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json(out_dir / SUITE_FILE, asdict(saved))


def finished(out_dir: Path, saved: SavedEvaluation, parts: Sequence[EvalSummary]) -> SuiteResult:
    """Return the result of a suite all of whose parts are finished, and write its summary."""
    suite = saved.suite
    rows = rows_of_suite(out_dir, suite)
    summary = write_summary(rows, suite_or_env=suite.label, policy=saved.policy, run_dir=out_dir)
    return SuiteResult(
        suite=suite.label,
        content_hash=saved.content_hash,
        policy=saved.policy,
        outcome="done",
        summary=summary,
        parts=tuple(parts),
    )


def rows_of_suite(out_dir: Path, suite: Suite) -> list[dict[str, object]]:
    """Return the episodes of all parts; if there are several, each row names its part."""
    if len(suite.parts) == 1:
        return read_rows(out_dir)
    labels = [part.label for part in suite.parts]
    return [row | {"part": label} for label in labels for row in read_rows(part_dir(out_dir, suite, label))]


def part_dir(out_dir: Path, suite: Suite, label: str) -> Path:
    """Return the folder of a part's evaluation."""
    return out_dir if len(suite.parts) == 1 else out_dir / label


def load_saved(out_dir: Path) -> SavedEvaluation:
    """Read ``suite.json``.

    Raises:
        CorruptDataError: the file is missing or not the evaluation of a suite.
    """
    path = out_dir / SUITE_FILE
    try:
        return checked(SavedEvaluation, read_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CorruptDataError(f"{path} is not the evaluation of a suite ({error!r})") from error


def _try_first(part: OpenPart, *, needs_oracle: bool) -> None:
    """Begin the first task to find requirements that only a running episode has: a sandbox, a game, an oracle."""
    with contextlib.closing(part.make_env()) as env:
        with boundary(EnvError, f"{part.part.env} reset"):
            env.reset(options={"task": part.tasks[0]})
        if needs_oracle:
            gold_action(env)


async def _run_part(opened: OpenSuite, part: OpenPart, play: Play) -> EvalSummary:
    suite, label = opened.suite, part.part.label
    limits = EpisodeLimits(reset_timeout_s=suite.reset_timeout_s, step_timeout_s=suite.step_timeout_s)
    config = suite.config(part.part, play.config)
    own = replace(play, config=config, out_dir=part_dir(play.out_dir, suite, label))
    return await play_tasks(own, part.tasks, part.make_env, f"{suite.label}/{label}", limits)


def _refused(
    suite: Suite, content_hash: str, policy: str, error: AgentGymError, outcome: Literal["cannot_run", "stopped"]
) -> SuiteResult:
    mend = mend_of(suite, error) if outcome == "cannot_run" else ""  # report missing data before the suite begins
    if not isinstance(error, (UsageError, RunStoppedError)) and not mend:  # these errors say what to do
        own = next((part.env for part in suite.parts if ":" in part.env and part.env in str(error)), None)
        mend = f"agentgym check {own}" if own else "agentgym doctor"
    reason = " ".join(str(error).split())
    return SuiteResult(
        suite=suite.label, content_hash=content_hash, policy=policy, outcome=outcome, reason=reason, mend=mend
    )
