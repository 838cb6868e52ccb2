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
