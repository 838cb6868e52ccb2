"""Tables of training runs: methods by rows, with means and intervals over seeds, and differences to a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from agentgym.canonical import strict_json
from agentgym.errors import UsageError, require_known
from agentgym.evals.statistics import student_interval, welch_interval
from agentgym.report.methods import Method, count, methods_of, notes_on, several, training_runs
from agentgym.report.run_folder import RunFolder, measured
from agentgym.rollout.record import read_json_object

Pairs = Literal["seed", "none"]
Format = Literal["text", "markdown", "latex", "json"]
SUFFIXES: Mapping[str, Format] = {".md": "markdown", ".tex": "latex", ".json": "json", ".txt": "text"}
HELD_OUT: Mapping[str, str] = {"after": "held-out", "before": "before RL", "gain": "gain by RL"}
"""Names of measures that an evaluation gives, with their titles."""
DEFAULT = ("after", "training")
_ESCAPES = {
    "Δ": r"$\Delta$",
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{one: f"\\{one}" for one in "&%$#_{}"},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A mean over seeds with its 95 % interval by Student's t."""

    value: float
    num_seeds: int
    low: float | None = None
    """Lower end of the interval; None for one seed, and where all seeds are equal."""
    high: float | None = None

    @property
    def excludes_zero(self) -> bool:
        """True if the interval does not contain 0: of a difference, the methods differ beyond what seeds vary."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def text(self, *, sign: bool = False, between: str = " ± ") -> str:
        """Return the mean and half the width of its interval."""
        mean = _number(self.value, sign=sign)
        if self.low is None or self.high is None:
            return mean
        return f"{mean}{between}{_number((self.high - self.low) / 2)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method."""

    label: str
    seeds: tuple[str, ...]
    num_runs: int
    cells: Mapping[str, Cell]
    """By measure."""
    differences: Mapping[str, Cell]
    """This method minus the baseline, by measure; empty for the baseline and where no seed is in both."""
    values: Mapping[str, Mapping[str, float]]
    """Values by measure and seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of methods, in the order of their first runs."""

    measures: tuple[str, ...]
    baseline: str
    pairs: Pairs
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def render(self, form: Format) -> str:
        """Return the table as a page of the form."""
        if form == "json":
            return strict_json(self.as_dict(), indent=2)
        if form == "latex":
            return _latex(self)
        return "\n".join([_markdown(self), "", *(f"* {note}" for note in self.notes)])

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def titles(self) -> list[str]:
        """Return the titles of the columns."""
        found = ["method", "seeds"]
        for measure in self.measures:
            found += [title_of(measure), f"Δ {title_of(measure)}"] if len(self.rows) > 1 else [title_of(measure)]
        return found

    def lines(self, *, between: str = " ± ", bold: str = "{}") -> list[list[str]]:
        """Return the cells of all rows as text.

        Args:
            between: text between a mean and half the width of its interval.
            bold: format of a difference whose interval excludes 0.
        """
        lines = []
        for row in self.rows:
            line = [row.label, str(len(row.seeds))]
            for measure in self.measures:
                line.append(row.cells[measure].text(between=between))
                if len(self.rows) > 1:
                    cell = row.differences.get(measure)
                    text = "" if cell is None else cell.text(sign=True, between=between)
                    line.append(bold.format(text) if cell and cell.excludes_zero else text)
            lines.append(line)
        return lines


def title_of(measure: str) -> str:
    """Return the title of a measure's column."""
    titles = {**HELD_OUT, "training": "in training"}
    return titles.get(measure, measure)


def table(
    folders: str | Path | Sequence[str | Path],
    *,
    measures: str | Sequence[str] = DEFAULT,
    pair_by: Pairs = "none",
    baseline: str = "",
    group_by: str | Sequence[str] = (),
) -> Table:
    """Return the table of some training runs.

    Args:
        folders: folders of runs or of sweeps, or one of them.
        measures: ``after``, ``before``, ``gain`` (success on held-out tasks), ``training`` (mean success over all RL
            steps), or a metric of ``metrics.jsonl``, which is averaged over all RL steps.
        pair_by: ``seed`` takes differences seed by seed; ``none`` compares the means of all seeds.
        baseline: label of the method to compare with; by default the first one.
        group_by: settings whose values make a method, by path; by default all that differ.

    Raises:
        UsageError: a folder is no training run, none has finished, or there is no such baseline or measure.
    """
    require_known("pairing", pair_by, get_args(Pairs))
    measures = several(measures)
    methods = methods_of(training_runs(folders), several(group_by))
    notes = notes_on(methods)
    all_values = {method.label: _values(method, measures, notes) for method in methods}
    methods = [method for method in methods if all_values[method.label][measures[0]]]
    if not methods:
        raise UsageError(f"no run has {title_of(measures[0])} yet: {'; '.join(notes)}")
    base = baseline or methods[0].label
    require_known("method", base, [method.label for method in methods])
    rows = []
    for method in methods:
        values = all_values[method.label]
        rows.append(
            Row(
                label=method.label,
                seeds=tuple(values[measures[0]]),
                num_runs=len(method.runs),
                cells={measure: _cell([*values[measure].values()]) for measure in measures},
                differences={
                    measure: cell
                    for measure in measures
                    if method.label != base and (cell := _minus(values[measure], all_values[base][measure], pair_by))
                },
                values=values,
            )
        )
    notes += _reading(rows, base, pair_by)
    return Table(measures=tuple(measures), baseline=base, pairs=pair_by, rows=tuple(rows), notes=tuple(notes))


def _values(method: Method, measures: Sequence[str], notes: list[str]) -> dict[str, dict[str, float]]:
    """Return a method's values by measure and seed. Runs without one of them are left out, with a note."""
    found: dict[str, dict[str, float]] = {measure: {} for measure in measures}
    for seed, runs in method.by_seed.items():
        of_runs = []
        for run in runs:
            try:
                of_runs.append([_measured(run, measure, notes) for measure in measures])
            except _UnfinishedError as error:
                notes.append(f"{run.path} is left out: {error}")
        for at, measure in enumerate(measures):
            if of_runs:
                found[measure][seed] = fmean(values[at] for values in of_runs)
    return found


class _UnfinishedError(Exception):
    """A run without the measure."""


def _measured(run: RunFolder, measure: str, notes: list[str]) -> float:
    steps = run.metrics.get("rl", [])
    made = read_json_object(run.path / "result.json").get("steps_made")  # fewer where eval.patience ended the run
    if measure in HELD_OUT:
        by_step = {int(row["step"]): row["success"] for row in run.metrics.get("eval", []) if "success" in row}
        last = int(made if made is not None else run.config.get("num_steps", max(by_step, default=0)))
        wanted = {"after": (last,), "before": (0,), "gain": (last, 0)}[measure]
        if not set(wanted) <= set(by_step):
            raise _UnfinishedError(f"it has {count(len(steps), 'step')} of {last} and no {title_of(measure)}")
        return float(by_step[wanted[0]] - (by_step[0] if measure == "gain" else 0))
    num_steps = int(made if made is not None else run.config.get("num_steps", len(steps)))
    if len(steps) < num_steps or not steps:
        raise _UnfinishedError(f"it has {count(len(steps), 'step')} of {num_steps}")
    name = "success" if measure == "training" else measure
    known = sorted({name for row in steps for name in row} - {"phase", "step"})
    require_known("measure", name, [*HELD_OUT, "training", *known])
    numbers = [number for _, number in measured(steps, name)]
    if not numbers:
        raise _UnfinishedError(f"it never measured {name}")
    if len(numbers) < len(steps):
        notes.append(f"{run.path}: {name} is known in {len(numbers)} of {len(steps)} steps, and its mean is over those")
    return fmean(numbers)


def _cell(values: Sequence[float]) -> Cell:
    if len({*values}) < 2:  # one seed, or several without a spread, which say nothing about others
        return Cell(value=values[0], num_seeds=len(values))
    span = student_interval(values)
    return Cell(value=span.value, num_seeds=len(values), low=span.low, high=span.high)


def _minus(values: Mapping[str, float], base: Mapping[str, float], pair_by: Pairs) -> Cell | None:
    """Return the difference of a method to the baseline; None if they have no seed to compare."""
    if pair_by == "seed":
        pairs = [values[seed] - base[seed] for seed in values if seed in base]
        return _cell(pairs) if pairs else None
    ones, others = [*base.values()], [*values.values()]
    if not ones:
        return None
    if min(len(ones), len(others)) < 2 or len({*ones}) == len({*others}) == 1:
        return Cell(value=fmean(others) - fmean(ones), num_seeds=min(len(ones), len(others)))
    span = welch_interval(ones, others)
    return Cell(value=span.value, num_seeds=min(len(ones), len(others)), low=span.low, high=span.high)


def _reading(rows: Sequence[Row], base: str, pair_by: Pairs) -> list[str]:
    """Return lines that say how to read the table."""
    most = max(len(row.seeds) for row in rows)
    if most == 1:
        lines = ["one seed: there is no interval over seeds; agentgym compare compares two runs task by task"]
    else:
        lines = ["means over seeds ± half the width of their 95 % interval by Student's t; equal seeds have none"]
    others = [row for row in rows if row.differences]
    if others and pair_by == "seed":
        counts = sorted({cell.num_seeds for row in others for cell in row.differences.values()})
        lines.append(f"Δ: differences to {base}, taken seed by seed ({' or '.join(map(str, counts))} pairs)")
    elif others:
        lines.append(f"Δ: differences to {base}, of all seeds of both (Welch); --pair-by seed pairs them")
    num_tests = sum(cell.low is not None for row in others for cell in row.differences.values())
    if num_tests:
        lines.append(
            f"bold (*): the interval excludes 0, which decides; {count(num_tests, 'difference')}, not corrected for "
            "their number"
        )
    for row in rows:
        if pair_by == "seed" and row.label != base and not row.differences:
            lines.append(f"{row.label} and {base} have no seed in common")
    return lines


def _markdown(made: Table) -> str:
    lines = [made.titles(), ["---"] * len(made.titles()), *made.lines(bold="**{}**")]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _latex(made: Table) -> str:
    """Return a table for the package booktabs."""
    titles = [_escaped(title) for title in made.titles()]
    rows = []
    for label, *cells in made.lines(between=r" \pm ", bold=r"\mathbf{{{}}}"):
        rows.append(" & ".join([_escaped(label), *(f"${cell}$" if cell else "" for cell in cells)]) + r" \\")
    notes = [f"% {' '.join(note.split())}" for note in made.notes]
    head = [rf"\begin{{tabular}}{{l{'r' * (len(titles) - 1)}}}", r"\toprule", " & ".join(titles) + r" \\", r"\midrule"]
    return "\n".join([*notes, *head, *rows, r"\bottomrule", r"\end{tabular}"])


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(one, one) for one in text)


def _number(value: float, *, sign: bool = False) -> str:
    """Return a number with three decimals, or in short form if it is large or tiny.

    Example:
        >>> _number(0.1234), _number(12345.6), _number(2e-5), _number(0.5, sign=True)
        ('0.123', '1.23e+04', '2e-05', '+0.500')
    """
    form = ".3f" if value == 0 or 0.0005 <= abs(value) < 1000 else ".3g"
    return f"{value:{'+' if sign else ''}{form}}"
