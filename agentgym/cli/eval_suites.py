"""``agentgym eval SUITE ...``: evaluate policies on suites; one table and one JSON value hold all results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rich.markup import escape

from agentgym.api.effort import Effort
from agentgym.api.policies import SamplingPlan, check_policy, open_agents, policy_facts
from agentgym.api.run_dirs import new_run_dir
from agentgym.cli.compare import print_comparisons
from agentgym.cli.eval_env import repeat_lines, truncation_text
from agentgym.cli.grid import Grid
from agentgym.cli.output import Output
from agentgym.errors import UsageError
from agentgym.evals.budget import both
from agentgym.evals.compare import Comparison
from agentgym.evals.episodes import write_json
from agentgym.evals.ledger import Ledger, kept_in
from agentgym.evals.prices import cost_text
from agentgym.evals.results_table import write_tables
from agentgym.evals.runner import complete_policy, is_complete
from agentgym.evals.scoring import Scoring
from agentgym.evals.suite_runner import Play, SuiteResult, part_dir, run_suite
from agentgym.evals.suites import SUFFIXES, Suite, load_suite, suite_from_dict, suite_names
from agentgym.rollout import journal
from agentgym.rollout.episode_notes import EpisodeNotes
from agentgym.rollout.folder_lock import locked
from agentgym.rollout.kept_files import keep_files
from agentgym.trust import sign

ALL = "all"
WRITTEN = ("results.json", "results.md", "comparisons.json", "tasks.csv", "report.html")
"""Files with the results of all suites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitesPlan:
    """All settings that determine the results. They are saved with the results for resuming."""

    suites: tuple[Suite, ...]
    policies: tuple[str, ...]
    sampling: SamplingPlan
    is_all: bool
    """True if all suites were requested, so that those that cannot run here are skipped."""


def is_suite(target: str) -> bool:
    """Return True if a target names suites, False for an environment."""
    return target == ALL or target in suite_names() or Path(target).suffix in SUFFIXES


def suites_like(target: str) -> list[str]:
    """Return the suites with names similar to a target, the most similar first.

    Example:
        >>> suites_like("babyai-level")
        ['babyai-levels']
    """
    return get_close_matches(target, suite_names())


@dataclass(frozen=True, slots=True)
class SuiteSize:
    """Changes of a suite from the command line. A changed suite has another name and content."""

    episodes: int | None = None
    """Number of tasks, from the start of each part; None for all."""
    repeats: int | None = None
    """Episodes per task; None for the suite's own number."""
    scoring: Mapping[str, object] = field(default_factory=dict)
    """Settings of the scorers that define success; empty for the suite's own."""

    def changed(self, suite: Suite) -> Suite:
        """Return the suite with the changes applied."""
        suite = suite if self.episodes is None else suite.shortened(self.episodes)
        suite = suite if self.repeats is None else suite.repeated(self.repeats)
        return suite.scored(Scoring.read(self.scoring)) if self.scoring else suite


def begin(
    targets: Sequence[str], policies: Sequence[str], size: SuiteSize, sampling: SamplingPlan, run_dir: Path | None
) -> tuple[SuitesPlan, Path]:
    """Return the plan and the folder of a new evaluation, after checking all arguments.

    Raises:
        UsageError: a suite or policy is unknown, the files of the only suite are missing, or the folder is in use.
    """
    named = [name for target in targets for name in (suite_names() if target == ALL else (target,))]
    suites = [size.changed(load_suite(name)) for name in dict.fromkeys(named)]
    if len({suite.name for suite in suites}) < len(suites):
        raise UsageError("two of the suites have the same name; give one of the files another")
    if len(suites) == 1 and ALL not in targets:
        suites[0].require_data()
    for policy in policies:
        check_policy(policy, sampling)
    plan = SuitesPlan(suites=tuple(suites), policies=tuple(policies), sampling=sampling, is_all=ALL in targets)
    folder = new_run_dir(f"eval-{suites[0].name if len(suites) == 1 else 'suites'}", run_dir)
    saved = asdict(plan) | {"suites": [asdict(suite) for suite in suites]}
    write_json(folder / "config.json", keep_files(folder, {"eval_suites": saved}))
    sign(folder)
    return plan, folder


def read_plan(saved: dict[str, Any]) -> SuitesPlan:
    """Return the plan that :func:`begin` saved."""
    return SuitesPlan(
        suites=tuple(suite_from_dict(values) for values in saved["suites"]),
        policies=tuple(saved["policies"]),
        sampling=SamplingPlan(**saved["sampling"]),
        is_all=bool(saved["is_all"]),
    )


async def evaluate_suites(
    plan: SuitesPlan, folder: Path, effort: Effort, resume: bool, out: Output
) -> list[SuiteResult]:
    """Evaluate every policy on every suite, one after the other. ``results.json`` holds the results so far."""
    results: list[SuiteResult] = []
    is_new_limit, effort = effort.is_limited, effort.kept_in(folder)
    notes = EpisodeNotes(lambda text: out.status.print(text, markup=False, soft_wrap=True))
    budget, prices = effort.budget(folder), effort.prices_in(folder, plan.policies)
    with locked(folder):
        policies = {policy: policy_facts(policy) for policy in plan.policies}
        own_files = journal.own_files([asdict(suite) for suite in plan.suites])
        if changes := journal.note(folder, policies=policies, own_files=own_files):
            told = f"note: this evaluation was begun with other versions ({'; '.join(changes)})"
            out.status.print(told, markup=False, soft_wrap=True)
        for policy, name in zip(plan.policies, folder_names(plan.policies), strict=True):
            is_played = resume and all(_is_complete(suite, folder / suite.name / name) for suite in plan.suites)
            ledgers = [Ledger(folder / suite.name / name, prices, [policy], budget.count) for suite in plan.suites]
            for ledger in ledgers if not is_new_limit else ():
                ledger.count_again()
            with kept_in(ledgers[0]):  # the first suite pays for the checks of the endpoint
                make_agent, close = (
                    (complete_policy, _nothing)
                    if is_played  # a new price, say, needs no endpoint that answers
                    else await open_agents(policy, plan.sampling, num_slots=effort.slots, folder=folder)
                )
            try:
                for suite, ledger in zip(plan.suites, ledgers, strict=True):
                    out.status.print(f"{suite.label}, {policy}", markup=False)
                    play = Play(
                        policy=policy,
                        make_agent=make_agent,
                        out_dir=folder / suite.name / name,
                        num_envs=effort.slots,
                        resume=resume,
                        on_episode=both(budget.at(prices.of(policy)), notes.watch),
                        on_attempt=budget.end_attempt,
                        price=prices.of(policy),
                    )
                    with kept_in(ledger):
                        results.append(await run_suite(suite, play))
                    write_json(folder / "results.json", [asdict(result) for result in results])
            finally:
                await close()
    return sorted(results, key=lambda result: [suite.label for suite in plan.suites].index(result.suite))


def _is_complete(suite: Suite, out_dir: Path) -> bool:
    return is_complete(out_dir, [part_dir(out_dir, suite, part.label) for part in suite.parts])


async def _nothing() -> None:
    pass


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


def _print_repeats(out: Output, results: Sequence[SuiteResult]) -> None:
    """Print the statistics of repeated episodes per task, if there are any."""
    titles = ("suite", "policy", "trials", "result")
    table = Grid(*titles, whole=titles)
    repeated = [result for result in results if result.summary is not None and result.summary.repeats]
    for result in repeated:
        for title, values in repeat_lines(result.summary.repeats if result.summary else {}):
            table.add_row(result.suite, escape(result.policy), title, values)
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


def print_results(
    out: Output, results: Sequence[SuiteResult], folder: Path, compared: Sequence[Comparison] = ()
) -> None:
    """Print one table of all results, including the suites that could not run."""
    has_cost = any(result.summary is not None and result.summary.mean_tokens for result in results)
    cost_column = (
        ["cost", "spent"] if has_cost else []
    )  # scripted policies have no tokens, and the terminal may be narrow
    table = Grid("suite", "policy", "success", "95 % interval", "return", "turns", *cost_column, "episodes")
    for result in results:
        found = result.summary
        if found is None:
            why = "cannot run here" if result.outcome == "cannot_run" else "stopped"
            table.add_row(
                result.suite,
                escape(result.policy),
                "–",
                "–",
                "–",
                "–",
                *("–" for _ in cost_column),
                f"[yellow]{why}[/]",
            )
            continue
        failed = f", [red]{found.failed_text}[/]" if found.num_failed else ""
        table.add_row(
            result.suite,
            escape(result.policy),
            f"[bold green]{found.success:.1%}[/]",
            f"{found.success_low:.1%} to {found.success_high:.1%}",
            f"{found.mean_return:.3f}",
            f"{found.mean_turns:.1f}",
            *((cost_text(found.cost), found.spent_text) if has_cost else ()),
            f"{found.num_episodes}{failed}",
        )
    out.console.print(table)
    for result in results:
        if result.summary is not None and (told := truncation_text(result.summary)):
            out.console.print(f"{result.suite}, {result.policy}: {told}", soft_wrap=True, markup=False)
    _print_repeats(out, results)
    if compared:
        print_comparisons(out, compared)
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
