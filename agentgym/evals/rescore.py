"""Scoring of recorded episodes with other scorers. Results go to a new folder; no episode runs, and the old folder does
not change.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from agentgym.evals.episodes import EpisodeFiles, write_json
from agentgym.evals.prices import NO_PRICES, Prices
from agentgym.evals.runner import EvalSummary, load_summary, write_summary
from agentgym.evals.scoring import Scoring
from agentgym.evals.suite_runner import SUITE_FILE, SavedEvaluation, SuiteResult, part_dir, rows_of_suite
from agentgym.evals.suites import open_suite
from agentgym.rollout.folder_lock import locked


async def rescore(source: Path, out_dir: Path, scoring: Scoring, prices: Prices = NO_PRICES) -> EvalSummary:
    """Score the episodes of an evaluation with other scorers, and write the files of an evaluation to ``out_dir``.

    Args:
        source: folder of the old evaluation.
        prices: prices of the episodes.

    Raises:
        CorruptDataError: the source is not a finished evaluation.
        RunStoppedError: no episode is valid.
    """
    before = load_summary(source)
    await scoring.check_ready()
    price = prices.of(before.policy)
    with locked(out_dir):
        files = EpisodeFiles(out_dir, resume=False, price=price)
        files.take_over(source)
        await files.score(scoring)
        files.finish()
        rows = list(files.rows.values())
        return write_summary(rows, suite_or_env=before.suite_or_env, policy=before.policy, run_dir=out_dir)


async def rescore_suite(
    source: Path, saved: SavedEvaluation, out_dir: Path, scoring: Scoring, prices: Prices = NO_PRICES
) -> SuiteResult:
    """Score all parts of a suite, as :func:`rescore` does.

    Raises:
        UsageError: the suite's tasks are not available here, so that the content hash is not known.
    """
    suite = saved.suite.scored(scoring)
    content_hash = open_suite(suite).content_hash
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json(
        out_dir / SUITE_FILE,
        {"suite": asdict(suite), "content_hash": content_hash, "policy": saved.policy},
    )
    parts = [
        await rescore(part_dir(source, saved.suite, part.label), part_dir(out_dir, suite, part.label), scoring, prices)
        for part in suite.parts
    ]
    rows = rows_of_suite(out_dir, suite)
    summary = write_summary(rows, suite_or_env=suite.label, policy=saved.policy, run_dir=out_dir)
    return SuiteResult(
        suite=suite.label,
        content_hash=content_hash,
        policy=saved.policy,
        outcome="done",
        summary=summary,
        parts=tuple(parts),
    )
