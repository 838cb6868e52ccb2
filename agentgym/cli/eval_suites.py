"""``agentgym eval SUITE ...``: evaluate policies on suites; one table and one JSON value hold all results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.markup import escape

from agentgym.api.evaluation import note_versions, notes_on, opened_in, play_of
from agentgym.api.policies import check_policy, policy_facts
from agentgym.api.run_dirs import new_run_dir
from agentgym.api.run_settings import sampled_as_the_run
from agentgym.cli.compare import print_comparisons
from agentgym.cli.eval_env import repeat_lines, truncation_text
from agentgym.cli.grid import Grid
from agentgym.cli.output import Output
from agentgym.cli.trust import require_trust
from agentgym.errors import MachineError, MissingExtraError, UnknownNameError, UsageError
from agentgym.evals.budget import Spending
from agentgym.evals.compare import Comparison
from agentgym.evals.config import EvalConfig, keep_config
from agentgym.evals.episodes import write_json
from agentgym.evals.ledger import kept_in
from agentgym.evals.repeats import REPEATS
from agentgym.evals.results_table import cells, write_tables
from agentgym.evals.runner import complete_policy, is_complete
from agentgym.evals.suite_runner import SuiteResult, part_dir, run_suite
from agentgym.evals.suites import SUFFIXES, Suite, load_suite, open_suite, suite_names
from agentgym.rollout import journal
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.folder_lock import locked
from agentgym.settings import checked

ALL = "all"
WRITTEN = ("results.json", "results.md", "comparisons.json", "tasks.csv", "report.html")
"""Files with the results of all suites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitesPlan:
    """All settings that determine the results. They are saved with the results for resuming."""

    suites: tuple[Suite, ...]
    policies: tuple[str, ...]
    sampling: EvalConfig
    """The options of the model alone."""
    is_all: bool
    """True if all suites were requested, so that those that cannot run here are skipped."""


def is_suite(target: str) -> bool:
    """Return True if a target names suites, False for an environment."""
    return target == ALL or target in suite_names() or Path(target).suffix in SUFFIXES


def begin(
    targets: Sequence[str], policies: Sequence[str], given: dict[str, Any], run_dir: Path | None, out: Output
) -> tuple[SuitesPlan, Path]:
    """Return the plan and the folder of a new evaluation, after checking all arguments.

    Args:
        given: options of the size, the model and its limits. A suite of another size has another name and content.

    Raises:
        UsageError: a suite or policy is unknown, the files of the only suite are missing, or the folder is in use.
    """
    if len(policies) == 1:
        given = sampled_as_the_run(policies[0], given, out.note, require_trust)
    sampling = checked(EvalConfig, given)
    named = [name for target in targets for name in (suite_names() if target == ALL else (target,))]
    suites = [_sized(load_suite(name), given, sampling) for name in dict.fromkeys(named)]
    if len({suite.name for suite in suites}) < len(suites):
        raise UsageError("two of the suites have the same name; give one of the files another")
    if len(suites) == 1 and ALL not in targets:
        suites[0].require_data()
    for name, suite in zip(dict.fromkeys(named), suites, strict=True):
        if name.endswith(SUFFIXES):
            _require_parts(suite, is_alone=len(suites) == 1)
    for policy in policies:
        check_policy(policy, sampling)
    plan = SuitesPlan(suites=tuple(suites), policies=tuple(policies), sampling=sampling, is_all=ALL in targets)
    folder = new_run_dir(f"eval-{suites[0].name if len(suites) == 1 else 'suites'}", run_dir)
    keep_plan(folder, plan)
    return plan, folder


def _require_parts(suite: Suite, *, is_alone: bool) -> None:
    """Raise an error for a mistake in a suite's own file: an unknown environment, argument, split or task.

    A missing extra or program is none: the table names it. Among several suites, so are missing data.
    """
    try:
        open_suite(suite)
    except (MissingExtraError, MachineError):
        return
    except UnknownNameError as error:
        raise UsageError(f"{suite.label}: {error}") from error
    except UsageError as error:
        if is_alone:
            raise UsageError(f"{suite.label}: {error}") from error


def keep_plan(folder: Path, plan: SuitesPlan, rescored_from: Path | None = None) -> None:
    """Write the plan of an evaluation to its folder, as :func:`~agentgym.evals.config.keep_config` does."""
    keep_config(folder, {"eval_suites": asdict(plan) | {"sampling": plan.sampling.values("model")}}, rescored_from)


def _sized(suite: Suite, given: Mapping[str, Any], config: EvalConfig) -> Suite:
    """Return a suite with the given size and scorers."""
    suite = suite.shortened(config.episodes) if "episodes" in given else suite
    suite = suite.repeated(config.repeats) if "repeats" in given else suite
    return suite.scored(config.scorers) if config.scoring else suite


async def evaluate_suites(
    plan: SuitesPlan, folder: Path, limits: Mapping[str, Any], resume: bool, out: Output
) -> list[SuiteResult]:
    """Evaluate every policy on every suite, one after the other. ``results.json`` holds the results so far."""
    results: list[SuiteResult] = []
    spending, watch = Spending(folder, limits, plan.policies), notes_on(out.status)
    with locked(folder):
        policies = {policy: policy_facts(policy) for policy in plan.policies}
        own_files = journal.own_files([asdict(suite) for suite in plan.suites])
        note_versions(folder, out.status, policies=policies, own_files=own_files)
        for policy, name in zip(plan.policies, folder_names(plan.policies), strict=True):
            is_played = resume and all(_is_complete(suite, folder / suite.name / name) for suite in plan.suites)
            ledgers = [spending.ledger(folder / suite.name / name, policy) for suite in plan.suites]
            config = replace(plan.sampling, policy=policy, num_envs=spending.limits.num_envs)
            make_agent: MakeAgent = complete_policy  # a new price, say, needs no endpoint that answers
            async with AsyncExitStack() as opened:
                if not is_played:
                    with kept_in(ledgers[0]):  # the first suite pays for the checks of the endpoint
                        make_agent = await opened_in(opened, policy, config, config.num_envs, folder)
                for suite, ledger in zip(plan.suites, ledgers, strict=True):
                    out.status.print(f"{suite.label}, {policy}", markup=False)
                    play = play_of(spending, config, make_agent, folder / suite.name / name, watch)
                    with kept_in(ledger):
                        results.append(await run_suite(suite, replace(play, resume=resume)))
                    write_json(folder / "results.json", [asdict(result) for result in results])
    return sorted(results, key=lambda result: [suite.label for suite in plan.suites].index(result.suite))


def _is_complete(suite: Suite, out_dir: Path) -> bool:
    return is_complete(out_dir, [part_dir(out_dir, suite, part.label) for part in suite.parts])


def folder_names(policies: Sequence[str]) -> list[str]:
    """Return a distinct folder name for each policy.

    Example:
        >>> folder_names(["oracle", "runs/a/model", "b/a/model"])
        ['oracle', 'model', 'model-2']
    """
    names: list[str] = []
    for policy in policies:
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", Path(policy).resolve().name if "/" in policy else policy).strip("-.")
        taken = sum(name == slug or name.startswith(f"{slug}-") for name in names)
        names.append(f"{slug}-{taken + 1}" if taken else slug)
    return names


_WIDTH_OF_TRIALS = max(map(len, REPEATS.values())) + 3 * 2
"""Width of the column of measures, and of the gaps between four columns."""
_LEAST_RESULT = 24


def _print_repeats(out: Output, results: Sequence[SuiteResult]) -> None:
    """Print the statistics of repeated episodes per task, if there are any."""
    titles = ("suite", "policy", "trials", "result")
    table = Grid(*titles, whole=titles)
    repeated = [result for result in results if result.summary is not None and result.summary.repeats]
    names = max((len(result.suite) + len(result.policy) for result in repeated), default=0)
    width = max(out.console.width - names - _WIDTH_OF_TRIALS, _LEAST_RESULT)
    for result in repeated:
        for title, values in repeat_lines(result.summary.repeats if result.summary else {}, width):
            for number, line in enumerate(values.split("\n")):
                table.add_row(result.suite, escape(result.policy), title if not number else "", line)
    if repeated:
        out.console.print(table)


def has_failed(plan: SuitesPlan, results: Sequence[SuiteResult]) -> bool:
    """Return True if a suite requested by name could not run."""
    return any(r.outcome == "stopped" or (r.outcome == "cannot_run" and not plan.is_all) for r in results)


def write_results(results: Sequence[SuiteResult], folder: Path) -> list[Comparison]:
    """Write the results as Markdown and HTML, and return the comparisons of policies."""
    from agentgym.report import write_report
    from agentgym.report.models import CSV_NAME, tasks_csv
    from agentgym.report.run_folder import open_run_folder
    from agentgym.rollout.record import replace_text

    compared = write_tables(folder, results)
    if any(result.summary is not None for result in results):
        write_report(folder)
        replace_text(folder / CSV_NAME, tasks_csv(open_run_folder(folder)))
    return compared


def _print_compared(out: Output, compared: Sequence[Comparison]) -> None:
    print_comparisons(out, compared)
    if len(named := {(one.policy_a, one.policy_b) for one in compared}) == 1:  # else the rows name them
        ((a, b),) = named
        out.console.print(f"A: {a}, B: {b}", soft_wrap=True, markup=False)


def print_results(
    out: Output, results: Sequence[SuiteResult], folder: Path, compared: Sequence[Comparison] = ()
) -> None:
    """Print one table of all results, including the suites that could not run."""
    has_cost = any(result.summary is not None and result.summary.mean_tokens for result in results)
    titles = ["success", "95 % interval", "return", "turns", *(["cost", "spent"] if has_cost else [])]
    table = Grid("suite", "policy", *titles, "episodes")  # scripted policies have no cost, and terminals may be narrow
    for result in results:
        about, found = (result.suite, escape(result.policy)), result.summary
        if found is None:
            why = "cannot run here" if result.outcome == "cannot_run" else "stopped"
            table.add_row(*about, *("–" for _ in titles), f"[yellow]{why}[/]")
            continue
        failed = f", [red]{found.failed_text}[/]" if found.num_failed else ""
        success, *numbers = cells(found)[: len(titles)]
        table.add_row(*about, f"[bold green]{success}[/]", *numbers, f"{found.num_episodes}{failed}")
    out.console.print(table)
    for result in results:
        if result.summary is not None and (told := truncation_text(result.summary)):
            out.console.print(f"{result.suite}, {result.policy}: {told}", soft_wrap=True, markup=False)
    _print_repeats(out, results)
    if compared:
        _print_compared(out, compared)
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        if result.summary is None:
            reasons.setdefault((result.suite, result.reason, result.mend), []).append(result.policy)
    for (suite, reason, mend), policies in reasons.items():
        out.console.print(f"\n{suite}, {', '.join(policies)}: {reason}", soft_wrap=True, markup=False)
        if mend:
            out.console.print(f"  to mend it: {mend}", soft_wrap=True, markup=False)
    written = [name for name in WRITTEN if (folder / name).is_file()]
    out.console.print(f"\nresults: {folder} ({', '.join(written)})", soft_wrap=True, markup=False)
