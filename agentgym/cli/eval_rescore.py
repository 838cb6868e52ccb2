"""``agentgym eval --rescore``: score recorded episodes with other scorers, and write the results to a new folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agentgym.api.run_dirs import new_run_dir
from agentgym.api.run_settings import run_settings
from agentgym.canonical import shell_word
from agentgym.cli.eval_suites import SuitesPlan, keep_plan
from agentgym.cli.trust import require_trust
from agentgym.errors import CorruptDataError
from agentgym.evals.compare import training_run_of
from agentgym.evals.config import EvalConfig, keep_config, read_config
from agentgym.evals.episodes import EpisodeFiles, write_json
from agentgym.evals.ledger import LEDGER_NAME, Ledger, kept_in
from agentgym.evals.prices import Prices, read_prices, saved_prices
from agentgym.evals.runner import EvalSummary, load_summary, write_summary
from agentgym.evals.scoring import Scoring
from agentgym.evals.suite_runner import (
    SUITE_FILE,
    SavedEvaluation,
    SuiteResult,
    finished,
    load_saved,
    part_dir,
    write_suite,
)
from agentgym.evals.suites import open_suite
from agentgym.rollout.folder_lock import locked


async def rescored(
    source: Path, settings: Mapping[str, Any], run_dir: Path | None, prices: str | None = None
) -> tuple[Path, EvalSummary | list[SuiteResult]]:
    """Score a recorded evaluation again. Return the new folder and the result, a list for suites.

    Args:
        source: folder of the evaluation.
        settings: settings of the scorers.
        run_dir: folder of the new results; by default a new one.
        prices: prices that replace those of the evaluation.

    Raises:
        UsageError: there is no such evaluation, or the scorers' settings are wrong.
        CorruptDataError: the evaluation did not finish.
    """
    require_trust(source)
    scoring = Scoring.read(settings)
    suites = [path.parent for path in sorted(source.glob(f"*/*/{SUITE_FILE}"))]
    plan = {} if suites else _plan_of(source)
    for folder in suites or [source]:
        if not (folder / "summary.json").is_file():
            raise CorruptDataError(
                f"{folder} did not finish; resume it first: agentgym eval --resume {shell_word(source)}"
            )
    priced = read_prices(prices) if prices else saved_prices(source)
    folder = new_run_dir("eval-rescored", run_dir)
    try:
        priced.save(folder)
        if not suites:
            keep_config(folder, {"eval": plan | {"scoring": asdict(scoring)}}, source)
            with _ledger(source, folder, priced):
                return folder, await _rescore(source, folder, scoring, priced)
        results = []
        made = read_config(source, {"eval_suites": SuitesPlan})
        scored = tuple(suite.scored(scoring) for suite in made.suites)  # what a resumed command would play
        keep_plan(folder, replace(made, suites=scored), source)
        for one in suites:
            saved_suite = load_saved(one)
            out_dir = folder / saved_suite.suite.scored(scoring).name / one.name
            with _ledger(one, out_dir, priced):
                results.append(await _rescore_suite(one, saved_suite, out_dir, scoring, priced))
        write_json(folder / "results.json", [asdict(result) for result in results])
        return folder, results
    except BaseException:  # the episodes stay in the old folder
        shutil.rmtree(folder)
        raise


async def _rescore(source: Path, out_dir: Path, scoring: Scoring, prices: Prices, name: str = "") -> EvalSummary:
    """Score the episodes of an evaluation with other scorers, and write the files of an evaluation to ``out_dir``.

    Args:
        source: folder of the old evaluation.
        prices: prices of the episodes.
        name: name in the summary; by default that of the old evaluation.

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
        return write_summary(rows, suite_or_env=name or before.suite_or_env, policy=before.policy, run_dir=out_dir)


async def _rescore_suite(
    source: Path, saved: SavedEvaluation, out_dir: Path, scoring: Scoring, prices: Prices
) -> SuiteResult:
    """Score all parts of a suite, as :func:`_rescore` does.

    Raises:
        UsageError: the suite's tasks are not available here, so that the content hash is not known.
    """
    suite = saved.suite.scored(scoring)
    content_hash = open_suite(suite).content_hash
    rescored = replace(saved, suite=suite, content_hash=content_hash)
    write_suite(out_dir, rescored)
    parts = []
    for label in (part.label for part in suite.parts):
        old, new = part_dir(source, saved.suite, label), part_dir(out_dir, suite, label)
        parts.append(await _rescore(old, new, scoring, prices, f"{suite.label}/{label}"))
    return finished(out_dir, rescored, parts)


def _ledger(source: Path, folder: Path, prices: Prices) -> AbstractContextManager[None]:
    """Return the context of a new folder's ledger, which begins with what was spent on the episodes."""
    if (spent := source / LEDGER_NAME).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(spent, folder / LEDGER_NAME)
    return kept_in(Ledger(folder, prices, [load_summary(source).policy]))


def _plan_of(source: Path) -> dict[str, Any]:
    """Return the plan of an evaluation of one environment, or of a training run's own evaluation."""
    run = training_run_of(source)
    if run is not None and (settings := run_settings(str(run), require=require_trust)) is not None:
        return settings.plan
    return read_config(source, {"eval": EvalConfig}, ignores_unknown=True).values("env", "size", "model")
