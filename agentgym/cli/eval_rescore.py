"""``agentgym eval --rescore``: score recorded episodes with other scorers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym.api.run_dirs import new_run_dir
from agentgym.api.run_settings import run_settings
from agentgym.canonical import read_json, shell_word
from agentgym.cli.trust import require_trust
from agentgym.errors import CorruptDataError, UsageError
from agentgym.evals.compare import training_run_of
from agentgym.evals.episodes import write_json
from agentgym.evals.ledger import LEDGER_NAME, Ledger, kept_in
from agentgym.evals.prices import Prices, saved_prices
from agentgym.evals.rescore import rescore, rescore_suite
from agentgym.evals.runner import EvalSummary, load_summary
from agentgym.evals.scoring import Scoring
from agentgym.evals.suite_runner import SUITE_FILE, SuiteResult, load_saved
from agentgym.rollout.kept_files import keep_files
from agentgym.rollout.record import read_json_object
from agentgym.trust import sign


async def rescored(
    source: Path, settings: Mapping[str, Any], run_dir: Path | None, prices: Prices | None = None
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
    prices = prices or saved_prices(source)
    folder = new_run_dir("eval-rescored", run_dir)
    try:
        prices.save(folder)
        if not suites:
            saved = plan | {"scoring": asdict(scoring)}
            write_json(folder / "config.json", keep_files(folder, {"eval": saved}) | {"rescored_from": str(source)})
            sign(folder)
            with _ledger(source, folder, prices):
                return folder, await rescore(source, folder, scoring, prices)
        results = []
        config = read_json_object(source / "config.json")
        write_json(folder / "config.json", keep_files(folder, config) | {"rescored_from": str(source)})
        sign(folder)
        for one in suites:
            saved_suite = load_saved(one)
            out_dir = folder / saved_suite.suite.scored(scoring).name / one.name
            with _ledger(one, out_dir, prices):
                results.append(await rescore_suite(one, saved_suite, out_dir, scoring, prices))
        write_json(folder / "results.json", [asdict(result) for result in results])
        return folder, results
    except BaseException:  # the episodes stay in the old folder
        shutil.rmtree(folder)
        raise


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
    try:
        return dict(read_json((source / "config.json").read_text(encoding="utf-8"))["eval"])
    except FileNotFoundError:
        raise UsageError(
            f"{source} is not an evaluation; name the folder of one, of suites, or RUN/eval/after of a training run"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{source / 'config.json'} is not an evaluation's configuration ({error!r})") from error
