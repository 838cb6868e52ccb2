"""agentgym convert: rows of SWE-bench as task directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testkit.swebench_rows import row, write_repository

from agentgym.envs.code.harbor import load_harbor_task

Command = Callable[..., Any]


def test_all_rows_are_written_or_some(run: Command, tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "repository")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row(repository, instance_id=name)) + "\n" for name in ("a__a-1", "b__b-1")))
    done = run("convert", str(rows), "--out", str(tmp_path / "all"), "--json")
    assert done.json == {"folder": str(tmp_path / "all"), "num_tasks": 2}
    run("convert", str(rows), "--out", str(tmp_path / "one"), "--id", "b__b-1", "--image", "x/{name}:1")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["b__b-1"]
    assert load_harbor_task(tmp_path / "one/b__b-1").image == "x/b_1776_b-1:1"
    assert "--image" in run("convert", str(rows), "--out", "x", "--image", "{tag}").assert_one_line_error()
    assert "no file" in run("convert", "gone.parquet", "--out", "x").assert_one_line_error()


def test_columns_that_may_change_the_grade_are_refused_by_name(run: Command, tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "repository")
    rows = tmp_path / "rows.jsonl"
    known: dict[str, Any] = {
        "instance_id": "a__a-1",
        "hints_text": "none",
        "difficulty": "1 hour",
        "eval_cmd": None,
        "meta": {},
    }
    for name, value in (("install_config", {"test_cmd": "tox"}), ("before_repo_set_cmd", "git reset"), ("x", 0)):
        rows.write_text(json.dumps(row(repository, **known, **{name: value})) + "\n")
        said = run("convert", str(rows), "--out", str(tmp_path / "out")).assert_one_line_error()
        assert f"row 0: unknown column '{name}'" in said and f"--drop {name}" in said
        assert run("convert", str(rows), "--out", str(tmp_path / "out"), "--drop", name).code == 0


def test_a_null_is_no_text(run: Command, tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "repository")
    rows = tmp_path / "rows.jsonl"
    for name in ("instance_id", "problem_statement", "patch", "test_patch"):
        rows.write_text(json.dumps(row(repository, **{name: None})) + "\n")
        said = run("convert", str(rows), "--out", str(tmp_path / "out")).assert_one_line_error()
        assert f"row 0: {name} is null, expected a text" in said


def test_rows_that_cannot_be_read_are_one_line(run: Command, tmp_path: Path) -> None:
    contents = {
        "latin.jsonl": '{"instance_id": "caf\xe9"}'.encode("latin-1"),
        "half.jsonl": b'{"instance_id": "a',
        "list.jsonl": b"[1]",
        "half.parquet": b"PAR1\x00",
        "empty.jsonl": b"",
        "rows.csv": b"a,b",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        said = run("convert", str(tmp_path / name), "--out", str(tmp_path / "out")).assert_one_line_error()
        assert name in said
