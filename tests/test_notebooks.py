"""The notebooks of examples/ run cell by cell inside a running event loop, as Jupyter runs them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
TRAINS = "trains"
"""Tag of cells that train, which only the slow test runs."""


def code_cells(name: str) -> list[dict[str, Any]]:
    notebook = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cells(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Execute cells in one namespace while an event loop is running, and return the namespace."""

    async def kernel() -> dict[str, Any]:
        namespace: dict[str, Any] = {"__name__": "__main__"}
        for cell in cells:
            exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
        return namespace

    return asyncio.run(kernel())


def test_every_notebook_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in FOLDER.glob("*.ipynb") if f'"{path.name}"' not in source] == []


def test_outputs_are_stripped() -> None:
    for path in FOLDER.glob("*.ipynb"):
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code_cells(path.name))


def test_first_steps(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in code_cells("first_steps.ipynb") if TRAINS not in cell["metadata"].get("tags", ())]
    assert len(cells) == 3
    names = run_cells(cells)
    assert names["expert"].success > names["simple"].success
    advantages = [turn.advantage for turns in names["credit"] for turn in turns]
    assert min(advantages) < 0 < max(advantages)
    assert "oracle: success 1.000" in capsys.readouterr().out


@pytest.mark.slow
def test_first_steps_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_cells(code_cells("first_steps.ipynb"))
    assert names["result"].steps == 2
    assert (tmp_path / "runs/tiny-001/model").is_dir() and (tmp_path / "runs/tiny-001/report.html").is_file()
