"""The comparison with released code, on a made-up release: no checkout is needed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from agentgym.credit.component import credit_table
from agentgym.plugins import Component
from agentgym.trainers.losses.component import loss_table

FOLDER = Path(__file__).parents[1] / "benchmarks" / "parity"
RELEASE = """
import a_package_that_is_not_there
FACTOR = 2

@register("mean")
def mean(values: Tensor) -> Tensor:
    return helper(values) * FACTOR

class Trainer(Base):
    @torch.no_grad()
    def scale(self, values: Tensor):
        return values * self.factor

    def fit(self, rewards):
        expensive_setup()
        advantages = rewards - rewards.mean()
        if self.clip:
            advantages = advantages.clip(-1, 1)
        self.log(advantages)
"""


def module(name: str) -> ModuleType:
    """Load a file of the benchmark; cases import each other as siblings."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


released = module("released")
compare = module("compare")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a file of a release that cannot be imported."""
    path = tmp_path / "checkouts" / "owner+name" / "trainer.py"
    path.parent.mkdir(parents=True)
    path.write_text(RELEASE)
    return path


# -------------------------------------------------------------------------------------------------- loading code


def test_names_are_cut_out_of_a_file_that_cannot_be_imported(release: Path) -> None:
    scope = released.load(release, "FACTOR", "mean", namespace={"helper": np.mean})
    assert scope["mean"](np.array([1.0, 3.0])) == 4.0


def test_a_method_becomes_a_function(release: Path) -> None:
    class Own:
        factor = 3

    assert released.load(release, "Trainer.scale")["scale"](Own(), 2) == 6


def test_a_missing_name_is_refused(release: Path) -> None:
    with pytest.raises(LookupError, match=r"has no Trainer\.sum, total; is the checkout at the commit"):
        released.load(release, "mean", "Trainer.sum", "total")


def test_lines_of_a_function_run_alone(release: Path) -> None:
    class Own:
        clip = True

    scope = {"self": Own(), "rewards": np.array([4.0, 0.0])}
    ran = released.run_lines(release, "advantages = rewards", "self.log(", scope, within="def fit")
    assert ran["advantages"].tolist() == [1.0, -1.0]


def test_missing_lines_are_refused(release: Path) -> None:
    with pytest.raises(LookupError, match="has no line 'loss ='"):
        released.run_lines(release, "advantages = rewards", "loss =", {})


def test_gap() -> None:
    nan, inf = float("nan"), float("inf")
    assert released.gap([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert released.gap([nan, inf], [nan, inf]) == 0.0
    assert released.gap([], []) == 0.0
    assert released.gap([1.0], [1.0, 1.0]) == inf
    assert released.gap([nan], [0.0]) == inf
    assert released.gap([inf], [-inf]) == inf


def test_commit_of_a_checkout(tmp_path: Path) -> None:
    assert released.commit_of(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "Start"], check=True)
    commit = released.commit_of(tmp_path)
    assert len(commit) == 7 and int(commit, 16) >= 0


# ------------------------------------------------------------------------------------------------------ comparing


def case(component: str, size: float, repository: str = "owner/name", explained: str = "") -> Any:
    """Return a case whose difference is ``size``."""
    return released.Case(
        component=component,
        release=released.Release(repository, "1234567"),
        file="trainer.py",
        largest_gap=lambda folder, rng: size * rng.random(),
        explained=explained,
    )


def run(monkeypatch: pytest.MonkeyPatch, cases: list[Any], *arguments: str) -> int:
    monkeypatch.setattr(compare, "all_cases", lambda: cases)
    return int(compare.main(list(arguments)))


def test_results_are_written(monkeypatch: pytest.MonkeyPatch, release: Path, tmp_path: Path) -> None:
    cases = [case("equal", 0.0), case("other", 2.0, explained="Ours is centred.")]
    root = str(release.parents[1])
    assert run(monkeypatch, cases, root, "--trials", "3", "--out", str(tmp_path)) == 0
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [(row["component"], row["equal"], row["trials"]) for row in rows] == [
        ("equal", True, 3),
        ("other", False, 3),
    ]
    assert rows[0]["commit"] == "unknown" and 0 < rows[1]["largest_difference"] <= 2
    table = (tmp_path / "results.md").read_text()
    assert "| `equal` | owner/name unknown | trainer.py | 0.0e+00 | 3 |" in table
    assert "1. `other`: Ours is centred." in table


def test_an_unexplained_difference_fails(
    monkeypatch: pytest.MonkeyPatch, release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (str(release.parents[1]), "--trials", "2", "--out", str(tmp_path))
    assert run(monkeypatch, [case("other", 2.0)], *arguments) == 1
    assert "DIFFERS" in capsys.readouterr().out


def test_rows_of_missing_checkouts_stay(monkeypatch: pytest.MonkeyPatch, release: Path, tmp_path: Path) -> None:
    root, out = str(release.parents[1]), ("--trials", "2", "--out", str(tmp_path))
    assert run(monkeypatch, [case("one", 0.0), case("gone", 0.0)], root, *out) == 0
    cases = [case("one", 0.0), case("away", 0.0, "owner/away")]
    rows = json.loads((tmp_path / "results.json").read_text())
    rows.append(rows[0] | {"component": "away", "repository": "owner/away", "commit": "abcdef0"})
    (tmp_path / "results.json").write_text(json.dumps(rows))
    assert run(monkeypatch, cases, root, *out) == 0
    kept = {row["component"]: row["commit"] for row in json.loads((tmp_path / "results.json").read_text())}
    assert kept == {"one": "unknown", "away": "abcdef0"}, "rows without a case are dropped"


@pytest.mark.parametrize(
    "arguments", [[], ["no-such-folder"], [".", "--trials", "0"], [".", "--only", "grpoo"], ["--fast"]]
)
def test_bad_arguments_are_refused(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        run(monkeypatch, [case("grpo", 0.0)], *arguments)
    assert refused.value.code == 2


def test_releases_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, [case("a", 0.0), case("b", 0.0)], "--list") == 0
    assert capsys.readouterr().out == "owner/name 1234567\n"


# ---------------------------------------------------------------------------------------------------- the real cases


def test_every_case_has_a_row_that_is_equal_or_explained() -> None:
    rows = {
        (row["component"], row["variant"], row["repository"]): row
        for row in json.loads((FOLDER / "results.json").read_text())
    }
    cases = compare.all_cases()
    keys = [(each.component, each.variant, each.release.repository) for each in cases]
    assert cases and len(set(keys)) == len(keys)
    assert sorted(rows) == sorted(keys), "run benchmarks/parity/compare.py again"
    for key, each in zip(keys, cases, strict=True):
        assert rows[key]["equal"] or each.explained, key
        assert rows[key]["explained"] == each.explained


@pytest.mark.parametrize("component", (*credit_table(), *loss_table()), ids=lambda component: component.name)
def test_verified_means_equal_to_released_code(component: Component) -> None:
    rows = [row for row in json.loads((FOLDER / "results.json").read_text()) if row["component"] == component.name]
    compared = {f"{row['repository']}@{row['commit']}" for row in rows if row["equal"]}
    assert (component.status == "verified") == bool(component.parity)
    if component.parity:
        assert component.parity.partition(":")[0] in compared
    else:
        assert not compared, "the comparison is not named where the component is registered"
