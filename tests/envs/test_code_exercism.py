"""The Exercism format: one file of lines, or folders as in a checkout; and all exercises where the data is."""

import json
import os
from pathlib import Path

import pytest

from agentgym.envs.code.exercism import (
    DATA_VARIABLE,
    FILE,
    exercise_of,
    exercism_tasks,
    find_exercises,
    load_exercises,
)
from agentgym.errors import CorruptDataError, UnknownNameError, UsageError
from agentgym.types import Task

ROW = {
    "slug": "double",
    "blurb": "Double.",
    "instructions": "# Instructions\n\nDouble a number.\n",
    "stub": {"double.py": "def double(n):\n    pass\n"},
    "tests": {"double_test.py": "import unittest\nfrom double import double\n"},
    "example": {"double.py": "def double(n):\n    return 2 * n\n"},
}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    rows = [ROW, *({**ROW, "slug": f"double-{number}"} for number in range(30))]
    (tmp_path / "exercises.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path / "exercises.jsonl"


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    root = tmp_path / "practice"
    for name, text in {
        ".meta/config.json": json.dumps(
            {"files": {"solution": ["double.py"], "test": ["double_test.py"], "example": [".meta/example.py"]}}
        ),
        ".docs/instructions.md": ROW["instructions"],
        "double.py": ROW["stub"]["double.py"],  # type: ignore[index]
        "double_test.py": ROW["tests"]["double_test.py"],  # type: ignore[index]
        ".meta/example.py": ROW["example"]["double.py"],  # type: ignore[index]
    }.items():
        (root / "double" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "double" / name).write_text(str(text), encoding="utf-8")
    return root


def test_lines_and_folders_hold_the_same(lines: Path, folders: Path) -> None:
    of_lines, of_folders = load_exercises(lines)["double"], load_exercises(folders)["double"]
    assert of_lines.instructions.strip() == of_folders.instructions.strip()
    assert (of_lines.stub, of_lines.tests, of_lines.example) == (of_folders.stub, of_folders.tests, of_folders.example)


def test_an_exercise_as_a_problem(lines: Path) -> None:
    hidden = load_exercises(lines)["double"].problem(shows_tests=False)
    assert hidden.files == ROW["stub"]
    assert hidden.hidden_tests == ROW["tests"]
    assert hidden.solution == ROW["example"]
    assert "Double a number." in hidden.statement
    assert "def double(n):" in hidden.statement
    assert hidden.public_tests == ()
    shown = load_exercises(lines)["double"].problem(shows_tests=True)
    assert set(shown.files) == {"double.py", "double_test.py"}
    assert shown.public_tests == ("double_test.py",)


def test_splits_share_no_exercise_and_hold_all(lines: Path) -> None:
    tasks = {split: exercism_tasks(lines, split, {"source": "exercism"}) for split in ("train", "valid", "test")}
    slugs = [task.data["slug"] for pool in tasks.values() for task in pool]
    assert sorted(slugs) == sorted(load_exercises(lines))
    assert all(task.split == split and task.data["source"] == "exercism" for split in tasks for task in tasks[split])
    assert len(tasks["train"]) > len(tasks["test"]) > 0


def test_a_task_finds_its_exercise_again(lines: Path) -> None:
    task = exercism_tasks(lines, "train", {})[0]
    assert exercise_of(task, lines).slug == task.data["slug"]
    with pytest.raises(UnknownNameError, match="unknown exercise 'triple'"):
        exercise_of(Task(id="x", split="train", seed=0, data={"slug": "triple"}), lines)
    other = Task(id="x", split="train", seed=0, data={"slug": "double", "content_hash": "0"})
    with pytest.raises(UsageError, match="differs from the one"):
        exercise_of(other, lines)


def test_a_changed_file_is_read_again(lines: Path) -> None:
    assert "double" in load_exercises(lines)
    stamp = lines.stat().st_mtime_ns + 1_000_000
    lines.write_text(json.dumps({**ROW, "slug": "new"}) + "\n", encoding="utf-8")
    os.utime(lines, ns=(stamp, stamp))
    assert list(load_exercises(lines)) == ["new"]


def test_absent_data_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"exercism_path=.*or set AGENTGYM_SHARED_DATA"):
        find_exercises()
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match=r"but there is no code/exercism_python_practice\.jsonl in it"):
        find_exercises()
    with pytest.raises(UsageError, match="no Exercism exercises at"):
        find_exercises(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no exercises"):
        load_exercises(tmp_path)
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_text(json.dumps(ROW), encoding="utf-8")
    assert list(load_exercises(find_exercises())) == ["double"]


@pytest.mark.parametrize("row", ["{", "[]", json.dumps({**ROW, "stub": "text"}), json.dumps({"slug": "double"})])
def test_corrupt_lines_are_named(row: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + row + "\n", encoding="utf-8")
    with pytest.raises(CorruptDataError, match="line 2: no exercise"):
        load_exercises(file)


def test_corrupt_folders_are_named(folders: Path) -> None:
    (folders / "double" / "double_test.py").unlink()
    with pytest.raises(CorruptDataError, match="double: no exercise: FileNotFoundError"):
        load_exercises(folders)
