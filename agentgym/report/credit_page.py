"""The HTML page of ``agentgym credit``: estimators side by side, and groups turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agentgym.credit.config import CreditConfig
from agentgym.credit.recredit import RECORDED, CreditSummary, CreditTally, has_memory, recredit
from agentgym.report.charts import as_number, as_share
from agentgym.report.credit_groups import GroupSample
from agentgym.report.page import assets, render, script_data, write_page
from agentgym.rollout import journal
from agentgym.rollout.record import recorded_steps
from agentgym.rollout.recredit import RecreditPlan, read_batches

OWN = "the run's own settings"
"""Hidden column that is computed to check the recorded one."""
SAME = 1e-9


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A displayed number of an estimator's summary."""

    field: str
    """Field of :class:`~agentgym.credit.recredit.CreditSummary`."""
    label: str
    short: str
    """Short title for a terminal."""
    about: str
    show: Callable[[float], str] = as_share

    def text(self, summary: CreditSummary) -> str:
        """Format the value; a dash means that it is not defined."""
        value = getattr(summary, self.field)
        return "–" if value is None else self.show(value)


_SAME_SIGN = "of the turns that are credited by either, the share with the sign of the recorded advantage"
_SILENT = "share of groups in which no turn is credited"
_PHANTOM = "share of turns that are credited in a group where no member succeeded"
_SHARED = "share of turns whose state another turn of the group shared"
COLUMNS = (
    ShownColumn("credited_share", "turns credited", "credited turns", "share of turns with an advantage other than 0"),
    ShownColumn("uncredited_group_share", "groups without credit", "silent groups", _SILENT),
    ShownColumn("phantom_share", "phantom turns", "phantom", _PHANTOM),
    ShownColumn("anchor_share", "turns in a shared state", "shared states", _SHARED),
    ShownColumn(
        "anchor_size", "turns per shared state", "per state", "mean size of these turns' anchor groups", as_number
    ),
    ShownColumn("advantage_std", "deviation of advantages", "std", "standard deviation over all turns", as_number),
    ShownColumn("correlation", "correlation", "corr.", "Pearson's, with the recorded advantages", as_number),
    ShownColumn("sign_agreement", "same sign", "same sign", _SAME_SIGN),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditReport:
    """The result of applying other estimators to a run, and the path of its page."""

    path: Path
    num_groups: int
    num_turns: int
    recorded: CreditSummary | None
    """Summary of the recorded credit; None if the run recorded none."""
    estimators: tuple[CreditSummary, ...]
    notes: tuple[str, ...]


def write_credit_report(
    run_dir: Path,
    plan: RecreditPlan,
    steps: Sequence[int],
    path: Path,
    on_step: Callable[[int], None] = lambda step: None,
) -> CreditReport:
    """Apply the estimators to the recorded steps and write the page.

    Args:
        steps: steps from :func:`agentgym.rollout.recredit.select_steps`.
        path: the page to write, in an existing folder.
        on_step: called after each step, for progress.

    Raises:
        CorruptDataError: a record cannot be read.
        ConfigError: an estimator cannot credit a batch.
        UsageError: the page cannot be written.
    """
    configs = dict(plan.configs) | ({} if plan.own is None else {OWN: plan.own})
    tally, sample = CreditTally(), GroupSample([RECORDED, *plan.configs])
    for credit in recredit(read_batches(run_dir, steps, configs, plan.env_name), configs, first_step=min(steps)):
        tally.add(credit)
        sample.add(credit)
        on_step(credit.batch.step)
    summaries = {summary.name: summary for summary in tally.summaries()}
    recorded = summaries[RECORDED] if summaries[RECORDED].num_turns else None
    report = CreditReport(
        path=path,
        num_groups=tally.num_groups,
        num_turns=tally.num_turns,
        recorded=recorded,
        estimators=tuple(summaries[name] for name in plan.configs),
        notes=(*plan.notes, *_gaps(run_dir, plan, max(steps)), *_checks(run_dir, recorded, summaries.get(OWN))),
    )
    write_page(path, _page(run_dir, plan, steps, report, sample))
    return report


def _gaps(run_dir: Path, plan: RecreditPlan, last_step: int) -> tuple[str, ...]:
    """Return remarks on steps that are missing in estimators' memories."""
    names = [name for name, config in plan.configs.items() if has_memory(config)]
    num_missing = len(set(range(last_step + 1)) - set(recorded_steps(run_dir)))
    if not names or not num_missing:
        return ()
    what = "1 earlier step is" if num_missing == 1 else f"{num_missing} earlier steps are"
    return (f"{what} not recorded and so not in the memory of {', '.join(names)}",)


def _checks(run_dir: Path, recorded: CreditSummary | None, own: CreditSummary | None) -> tuple[str, ...]:
    """Return remarks on differences between the recorded credit and that of the run's own settings."""
    if recorded is None:
        return ("the run recorded no credit: there is nothing to compare with",)
    if own is None or own.largest_gap is None or own.largest_gap <= SAME:
        return ()
    starts = journal.read(run_dir)
    used: dict[str, str] = dict(starts[-1].get("own_files", {})) if starts else {}
    changed = [name for name, digest in used.items() if digest and journal.file_digest(Path(name)) not in ("", digest)]
    what = f"{' and '.join(changed)} changed" if changed else "its settings or the library have changed"
    return (
        f"the run's own settings do not give the recorded credit, as {what} since: advantages differ by up to "
        f"{own.largest_gap:.3g}",
    )


def _page(run_dir: Path, plan: RecreditPlan, steps: Sequence[int], report: CreditReport, sample: GroupSample) -> str:
    data = sample.data()
    rows = [summary for summary in (report.recorded, *report.estimators) if summary is not None]
    flat = rows[0].flat_group_share if rows else 0.0
    own = "" if plan.own is None else plan.own.estimator
    facts = {
        "trained with": own,
        "steps": f"{steps[0] + 1} to {steps[-1] + 1}" if len(steps) > 1 else str(steps[0] + 1),
        "groups": f"{report.num_groups:,}, {as_share(flat)} of them of equal returns",
        "turns": f"{report.num_turns:,}",
    }
    return render(
        "credit.html.jinja",
        name=run_dir.resolve().name,
        facts=[(name, value) for name, value in facts.items() if value],
        columns=COLUMNS,
        rows=[_row(summary, plan) for summary in rows],
        notes=report.notes,
        num_shown=len(data["groups"]),
        num_groups=sample.num_groups,
        css=assets("report.css", "credit.css"),
        js=assets("elements.js", "credit.js"),
        data=script_data(data),
    )


def _row(summary: CreditSummary, plan: RecreditPlan) -> dict[str, object]:
    is_recorded = summary.name == RECORDED
    config = plan.own if is_recorded else plan.configs[summary.name]
    words: list[str] = [config.estimator] if is_recorded and config is not None else []
    words += [settings_in_words(config) or "default settings"] if config is not None else []
    is_same = not is_recorded and summary.largest_gap is not None and summary.largest_gap <= SAME
    return {
        "name": summary.name,
        "settings": ", ".join(words),
        "remark": "the same as recorded" if is_same else "",
        "cells": [column.text(summary) for column in COLUMNS],
    }


def settings_in_words(config: CreditConfig) -> str:
    """Return a text of the settings that differ from their defaults.

    Example:
        >>> settings_in_words(CreditConfig(estimator="gigpo", gamma=1.0, norm="mean_norm"))
        'norm mean_norm, gamma 1'
    """
    words: list[str] = []
    for key in fields(config):
        value = getattr(config, key.name)
        if key.name == "estimator" or value == key.default:
            continue
        parts = value if isinstance(value, tuple) else (value,)
        words.append(f"{key.name} {' + '.join(_in_words(part) for part in parts)}")
    return ", ".join(words)


def _in_words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if not hasattr(value, "kind"):
        return str(value)
    names = [key.name for key in fields(value) if key.name != "kind"]
    usual = type(value)()
    changed = (f"{name}={found}" for name in names if (found := getattr(value, name)) != getattr(usual, name))
    return f"{value.kind}({', '.join(changed)})"
