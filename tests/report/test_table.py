"""Tables of training runs: what counts as a method and a seed, differences, and the forms of the page."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentgym.cli.main import app
from agentgym.errors import UnknownNameError, UsageError
from agentgym.report.methods import methods_of, training_runs
from agentgym.report.plot import plot
from agentgym.report.table import table

RATES = {"grpo": (0.3, 0.4, 0.5), "gigpo": (0.41, 0.5, 0.61)}


def make(folder: Path, seed: int, rate: float, *, path: str = "", **credit: Any) -> Path:
    """A finished run of four steps."""
    folder.mkdir(parents=True)
    config = {
        "recipe": "demo",
        "seed": seed,
        "num_steps": 4,
        "env": {"id": "x"},
        "credit": credit,
        "model": {"path": path},
    }
    (folder / "config.json").write_text(json.dumps(config))
    rows: list[dict[str, Any]] = [{"phase": "eval", "step": 0, "success": 0.1}]
    rows += [{"phase": "rl", "step": step, "success": rate * step / 4, "entropy": 0.5} for step in range(1, 5)]
    rows.append({"phase": "eval", "step": 4, "success": rate})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        make(tmp_path / f"{name}-{seed}", seed, rate, estimator=name)
        for name, rates in RATES.items()
        for seed, rate in enumerate(rates)
    ]


def with_start(root: Path, name: str, seed: int, rate: float, **credit: Any) -> Path:
    """A run from a warm start of its seed, as benchmarks/credit/compare.py makes them."""
    start = root / f"start-{seed}"
    if not start.exists():
        make(start, seed, 0.0)
    return make(root / f"{name}-{seed}", seed, rate, path=str(start / "model"), **credit)


def test_means_and_paired_differences(runs: list[Path]) -> None:
    made = table(runs, pair_by="seed")
    grpo, gigpo = made.rows
    assert (grpo.label, gigpo.label, made.baseline) == ("estimator=grpo", "estimator=gigpo", "estimator=grpo")
    assert grpo.seeds == ("0", "1", "2")
    assert grpo.cells["after"].value == pytest.approx(0.4)
    assert grpo.cells["after"].high == pytest.approx(0.4 + 4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert grpo.cells["training"].value == pytest.approx(0.4 * 2.5 / 4)
    assert not grpo.differences
    after = gigpo.differences["after"]
    assert after.value == pytest.approx(0.32 / 3)
    assert after.num_seeds == 3 and after.excludes_zero
    # the same runs, not paired: seeds vary more than the methods differ
    assert not table(runs).rows[1].differences["after"].excludes_zero
    assert table(runs, pair_by="seed", baseline="estimator=gigpo").rows[0].differences["after"].value < 0


def test_runs_of_one_seed_are_one_seed(runs: list[Path], tmp_path: Path) -> None:
    again = make(tmp_path / "again", 0, 0.5, estimator="grpo")
    made = table([*runs[:1], again, runs[0]], measures=["after"])
    (row,) = made.rows
    assert (row.seeds, row.num_runs) == (("0",), 2)
    assert row.cells["after"].value == pytest.approx(0.4)
    assert row.cells["after"].low is None  # one seed has no interval over seeds
    assert any("several runs of seed 0 (the same settings) count as one seed" in note for note in made.notes)
    assert any(note.startswith("one seed: there is no interval over seeds") for note in made.notes)


def test_a_warm_start_for_each_seed_is_one_method(tmp_path: Path) -> None:
    runs = [
        with_start(tmp_path, name, seed, rate, estimator=name)
        for name, rates in RATES.items()
        for seed, rate in enumerate(rates)
    ]
    assert [len(method.by_seed) for method in methods_of(training_runs(runs))] == [3, 3]
    for seed in range(3):  # the starts are deleted, or the runs were copied to another machine
        shutil.rmtree(tmp_path / f"start-{seed}")
    assert [len(method.by_seed) for method in methods_of(training_runs(runs))] == [3, 3]


def test_numbers_in_the_path_of_a_study_are_no_seeds(tmp_path: Path) -> None:
    """A study in ``sweep-0/``: only the warm start's own folder names the seed."""
    root = tmp_path / "sweep-0"
    runs = [
        make(root / f"{name}-{seed}", seed, rate, path=str(root / f"start-{seed}" / "model"), estimator=name)
        for name, rates in RATES.items()
        for seed, rate in enumerate(rates)
    ]
    assert [len(method.by_seed) for method in methods_of(training_runs(runs))] == [3, 3]


def test_a_start_that_all_seeds_share_is_no_path_of_a_seed(tmp_path: Path) -> None:
    runs = [
        make(tmp_path / f"of-{start}-{seed}", seed, 0.5, path=f"starts/start-{start}/model")
        for start in (1, 2)
        for seed in range(3)
    ]
    assert [len(method.by_seed) for method in methods_of(training_runs(runs))] == [3, 3]


def test_other_warm_starts_are_other_methods(tmp_path: Path) -> None:
    make(tmp_path / "short", 0, 0.0, note="short")
    make(tmp_path / "long", 0, 0.0, note="long")
    runs = [make(tmp_path / f"of-{name}", 0, 0.5, path=str(tmp_path / name / "model")) for name in ("short", "long")]
    assert len(methods_of(training_runs(runs))) == 2


def test_grouping_by_a_setting_averages_the_others_within_a_seed(tmp_path: Path) -> None:
    runs = [
        make(tmp_path / f"{name}-{gamma}-{seed}", seed, 0.2 + 0.1 * seed + gamma, estimator=name, gamma=gamma)
        for name in ("grpo", "gigpo")
        for gamma in (0.0, 0.1)
        for seed in range(2)
    ]
    made = table(runs, group_by=["credit.estimator"])
    assert [(row.label, row.seeds, row.num_runs) for row in made.rows] == [
        ("estimator=grpo", ("0", "1"), 4),
        ("estimator=gigpo", ("0", "1"), 4),
    ]
    assert made.rows[0].values["after"] == {"0": pytest.approx(0.25), "1": pytest.approx(0.35)}
    assert any("they differ in credit.gamma" in note for note in made.notes)
    assert [row.label for row in table(runs, group_by=["gamma"]).rows] == ["gamma=0.0", "gamma=0.1"]
    with pytest.raises(UnknownNameError, match="unknown setting 'estimatr'"):
        table(runs, group_by=["estimatr"])


def test_an_unfinished_run_is_left_out_and_named(runs: list[Path]) -> None:
    rows = (runs[0] / "metrics.jsonl").read_text().splitlines()
    (runs[0] / "metrics.jsonl").write_text("\n".join(rows[:3]) + "\n")
    made = table(runs, pair_by="seed")
    assert made.rows[0].seeds == ("1", "2")
    assert made.rows[1].differences["after"].num_seeds == 2
    assert any("grpo-0 is left out: it has 2 steps of 4" in note for note in made.notes)
    with pytest.raises(UsageError, match="no run has held-out yet"):
        table(runs[:1])


def test_numbers_that_some_steps_lack(tmp_path: Path) -> None:
    """A mean over some steps is named; failures by kind are written where there are any, and 0 elsewhere."""
    run = make(tmp_path / "a", 0, 0.5, estimator="grpo")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (first, second, *_) = [row for row in rows if row["phase"] == "rl"]
    first |= {"voids/x/reset": 2.0, "filtered": 1.0, "thinking": 3.0}
    second |= {"thinking": None, "filtered": 0.0}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = table(run, measures=["voids/x/reset", "filtered", "thinking"])
    assert [made.rows[0].cells[name].value for name in made.measures] == [0.5, 0.5, 3.0]
    assert [note for note in made.notes if "is known in" in note] == [
        f"{run}: filtered is known in 2 of 4 steps, and its mean is over those",
        f"{run}: thinking is known in 1 of 4 steps, and its mean is over those",
    ]
    if find_spec("matplotlib"):
        (line,) = plot(run, tmp_path / "f.svg", metric="voids/x/reset")
        assert list(line.mean) == [2.0, 0.0, 0.0, 0.0]


def test_equal_seeds_have_no_interval(tmp_path: Path) -> None:
    runs = [make(tmp_path / f"{name}-{seed}", seed, 1.0, estimator=name) for name in RATES for seed in range(3)]
    made = table(runs, pair_by="seed")
    assert made.rows[0].cells["after"].low is None
    assert made.rows[1].differences["after"].value == 0
    assert not made.rows[1].differences["after"].excludes_zero


def test_seeds_that_do_not_meet_are_said(tmp_path: Path) -> None:
    runs = [make(tmp_path / "a", 0, 0.5, estimator="grpo"), make(tmp_path / "b", 1, 0.6, estimator="gigpo")]
    made = table(runs, pair_by="seed")
    assert not made.rows[1].differences
    assert "estimator=gigpo and estimator=grpo have no seed in common" in made.notes


def test_runs_of_other_software_are_said(runs: list[Path]) -> None:
    for at, run in enumerate(runs):
        line = {"at": str(at), "agentgym": "1", "packages": {"torch": "2.9" if at else "2.8"}}
        (run / "journal.jsonl").write_text(json.dumps(line) + "\n")
    assert "the runs were made with different packages.torch" in table(runs).notes


def test_forms_of_the_page(runs: list[Path], tmp_path: Path) -> None:
    def said(*words: str) -> str:
        done = CliRunner().invoke(app, ["table", *map(str, runs), "--pair-by", "seed", *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    text = said()
    assert "estimator=gigpo" in text and "+0.107 ± 0.014 *" in text
    assert "**+0.107 ± 0.014**" in said("--format", "markdown")
    assert json.loads(said("--json"))["rows"][1]["differences"]["after"]["num_seeds"] == 3
    said("-o", str(tmp_path / "paper" / "table.tex"))
    tex = (tmp_path / "paper" / "table.tex").read_text()
    assert r"estimator=gigpo & $3$ & $0.507 \pm 0.249$ & $\mathbf{+0.107 \pm 0.014}$" in tex
    assert r"$\Delta$ held-out" in tex and tex.count("\\begin{tabular}") == 1
    own = said("--metric", "entropy", "--format", "latex", "--baseline", "estimator=gigpo")
    assert "$0.500$" in own


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nothing"], "no folder 'nothing'"),
        (["{run}", "--metric", "succes"], "unknown measure 'succes'"),
        (["{run}", "--baseline", "x"], "unknown method 'x'"),
        (["{run}", "-o", "table.doc"], "must end in .md, .tex, .json, .txt"),
    ],
)
def test_bad_input_is_one_line(runs: list[Path], words: list[str], error: str) -> None:
    done = CliRunner().invoke(app, ["table", *(word.format(run=runs[0]) for word in words)])
    assert done.exit_code == 2
    assert error in done.stderr and done.stderr.count("\n") == 1


def test_latex_escapes_labels(tmp_path: Path) -> None:
    runs = [make(tmp_path / name, 0, 0.5, note=note) for name, note in (("a", "50%_&#x"), ("b", r"~\{}"))]
    tex = table(runs).render("latex")
    assert r"note=50\%\_\&\#x" in tex and r"note=\textasciitilde{}\textbackslash{}\{\}" in tex
