"""SWE-bench's rows: what is written of them, how logs are read and graded, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from testkit.swebench_rows import row, write_repository

from agentgym.envs.code.harbor import HarborTask, load_harbor_task
from agentgym.envs.code.harbor_grading import environment_of
from agentgym.envs.code.harbor_shadows import shadow_rule
from agentgym.envs.code.inside import swebench_judge
from agentgym.envs.code.inside.swebench_judge import PARSERS, main, statuses_of, unresolved
from agentgym.envs.code.swebench import RUNNERS, Instance, read_instances, write_harbor_task
from agentgym.errors import CorruptDataError, UsageError
from agentgym.evals.suites import load_suite, open_suite


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"))


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


# ------------------------------------------------------------------------------------------------------------- tasks


def test_a_row_becomes_a_task_directory(repository: Path, tmp_path: Path) -> None:
    (instance,) = read_instances(written(tmp_path / "rows.jsonl", row(repository)))
    assert instance.directives == instance.test_files == ("tests/test_convert.py",)
    root = write_harbor_task(instance, tmp_path / "tasks")
    task = load_harbor_task(root)
    assert task.name == "example__scales-7"
    assert task.image == "swebench/sweb.eval.x86_64.example_1776_scales-7:latest"
    assert (task.workdir, task.memory_mb, task.tests_timeout_s, task.left_out) == ("/testbed", 4096, 1800.0, (".git",))
    assert "water freezes at 32" in environment_of(task) and "/testbed" not in environment_of(task)
    assert set(task.tests) == {"test.sh", "test.patch", "expected.json", "judge.py"}
    script = task.tests["test.sh"].data.decode()
    assert "pytest -rA tests/test_convert.py > /logs/verifier/tests.log" in script
    placed = task.placed(script, {"/testbed": "/w/app", "/tests": "/w/tests", "/logs": "/w/logs"})
    assert "cd /w/app" in placed and 'cp "/./testbed/$file"' in placed, "the image's own folder keeps its name"


def test_parquet_ids_and_images(repository: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    named = {"instance_id": "b__b-1", "image_name": "mine:2", "FAIL_TO_PASS": ["x"]}
    rows = [row(repository, image_name=None), row(repository, **named)]
    rows[0]["FAIL_TO_PASS"] = json.loads(rows[0]["FAIL_TO_PASS"])
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    first, second = read_instances(tmp_path / "test.parquet")
    assert len(first.fail_to_pass) == 2 and second.fail_to_pass == ("x",)
    assert [one.id for one in read_instances(tmp_path / "test.parquet", ["b__b-1"])] == ["b__b-1"]
    assert (
        load_harbor_task(write_harbor_task(first, tmp_path, "local/{instance_id}")).image == "local/example__scales-7"
    )
    assert load_harbor_task(write_harbor_task(second, tmp_path)).image == "mine:2"


def test_a_conversion_that_stops_leaves_no_task(repository: Path, tmp_path: Path) -> None:
    (instance,) = read_instances(written(tmp_path / "rows.jsonl", row(repository)))
    root = write_harbor_task(instance, tmp_path / "tasks")
    (root / "tests" / "judge.py").unlink()
    (root / "tests" / "judge.py").mkdir()  # so that it cannot be written
    with pytest.raises(IsADirectoryError):
        write_harbor_task(instance, tmp_path / "tasks")
    with pytest.raises(UsageError, match=r"it has no task\.toml"):
        load_harbor_task(root)


def test_djangos_tests_are_named_as_modules() -> None:
    patch = "".join(
        f"diff --git a/{path} b/{path}\n" for path in ("tests/forms_tests/test_a.py", "tests/forms_tests/data.json")
    )
    fields = {"problem": "", "patch": "", "fail_to_pass": (), "pass_to_pass": ()}
    django = Instance(id="d", repo="django/django", version="3.2", test_patch=patch, **fields)  # type: ignore[arg-type]
    assert django.directives == ("forms_tests.test_a",)
    assert django.test_files == ("tests/forms_tests/test_a.py", "tests/forms_tests/data.json")
    assert "--settings=test_sqlite" in django.runner.command
    early = Instance(id="a", repo="astropy/astropy", version="1.3", test_patch="", **fields)  # type: ignore[arg-type]
    assert "-vv" in early.runner.command
    assert len(RUNNERS) == 12 and {one.parser for one in RUNNERS.values()} <= set(PARSERS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"FAIL_TO_PASS": "[1]"}, "lists of names"),
        ({"PASS_TO_PASS": "no JSON"}, "row 0"),
        ({"instance_id": "../up"}, "name of a folder"),
    ],
)
def test_wrong_rows_are_named(repository: Path, tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptDataError, match=words):
        read_instances(written(tmp_path / "rows.jsonl", row(repository, **changed)))
    without = {key: value for key, value in row(repository).items() if key != "patch"}
    with pytest.raises(CorruptDataError, match="no 'patch'"):
        read_instances(written(tmp_path / "rows.jsonl", without))
    with pytest.raises(UsageError, match="no instance 'x'"):
        read_instances(written(tmp_path / "rows.jsonl", row(repository)), ["x"])


# ----------------------------------------------------------------------------------------------------- logs and rules

LOGS = {
    "pytest": (
        "PASSED t.py::a\nFAILED t.py::b - assert 1 == 2\nSKIPPED [1] t.py:3: why\nXFAIL t.py::c\nERROR t.py::d\n",
        {"t.py::a": "PASSED", "t.py::b": "FAILED", "t.py::c": "XFAIL", "t.py::d": "ERROR"},
    ),
    "pytest_options": (
        "PASSED t.py::a[/tmp/x/y.txt]\nPASSED t.py::b[//x/y]\n",
        {"t.py::a[/y.txt]": "PASSED", "t.py::b[//x/y]": "PASSED"},
    ),
    "pytest_v2": (
        "t.py::a PASSED\n\x1b[31mFAILED\x1b[0m t.py::b[x y] - assert\nPASSED t.py::c[x y]\n",
        {"t.py::a": "PASSED", "t.py::b[x y]": "FAILED", "t.py::c[x y]": "PASSED"},
    ),
    "seaborn": (
        "FAILED t.py::a - no\nt.py::b PASSED  [ 5%]\nPASSED t.py::c\n",
        {"t.py::a": "FAILED", "t.py::b": "PASSED", "t.py::c": "PASSED"},
    ),
    "matplotlib": ("PASSED t.py::a[MouseButton.LEFT]\n", {"t.py::a[1]": "PASSED"}),
    "sympy": (
        "test_a ok\ntest_b F\ntest_c E\n___ sympy/x.py:test_d ___\n",
        {"test_a": "PASSED", "test_b": "FAILED", "test_c": "ERROR", "sympy/x.py:test_d": "FAILED"},
    ),
    "django": (
        "a (m.T) ... ok\nb (m.T) ... FAIL\nc (m.T) ... skipped 'no'\nd (m.T) ... noise\nok\nERROR: e (m.T)\n",
        {"a (m.T)": "PASSED", "b (m.T)": "FAILED", "c (m.T)": "SKIPPED", "d (m.T)": "PASSED", "e": "ERROR"},
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_are_read_by_the_repositorys_parser(name: str) -> None:
    log, expected = LOGS[name]
    assert PARSERS[name](log) == expected


def test_every_named_test_decides() -> None:
    expected = {"fail_to_pass": ["a", "c[1"], "pass_to_pass": ["b"]}
    right = {"a": "PASSED", "b": "PASSED", "c[1 x]": "XFAIL", "c[1 y]": "PASSED"}
    assert unresolved(expected, right) == []
    assert unresolved(expected, {**right, "b": "SKIPPED"}) == []
    assert unresolved(expected, {**right, "a": "SKIPPED"}) == ["a"]
    assert unresolved(expected, {**right, "b": "FAILED"}) == ["b"]
    assert unresolved(expected, {**right, "c[1 y]": "FAILED"}) == ["c[1"], "those that begin with it end differently"
    assert unresolved(expected, {}) == ["a", "c[1", "b"]


def test_names_with_blanks_are_read_whole() -> None:
    log = (
        "PASSED test_calc.py::test_eval[1 + 1-2]\nFAILED test_calc.py::test_eval[1 - 1-0] - assert 2 == 0 - no\n"
        "\x1b[32mPASSED\x1b[0m test_calc.py::test_eval[a  b]\nPASSED test_calc.py::test_plain\n"
    )
    found = statuses_of("pytest", log)
    assert found["test_calc.py::test_eval[1 + 1-2]"] == "PASSED"
    assert found["test_calc.py::test_eval[1 - 1-0]"] == "FAILED"
    assert found["test_calc.py::test_eval[a  b]"] == "PASSED"
    whole = {"fail_to_pass": ["test_calc.py::test_eval[1 + 1-2]", "test_calc.py::test_eval[a  b]"], "pass_to_pass": []}
    assert unresolved(whole, found) == []
    cut = {"fail_to_pass": ["test_calc.py::test_eval[1"], "pass_to_pass": ["test_calc.py::test_plain"]}
    assert unresolved(cut, statuses_of("pytest", log.replace("FAILED", "PASSED"))) == []
    assert unresolved(cut, found) == ["test_calc.py::test_eval[1"], "two of them, of which one failed"
    lines = ["FAILED t.py::e[1 * 1] - x", "PASSED t.py::e[1 + 1]"]
    for ordered in (lines, lines[::-1]):
        both = statuses_of("pytest", "\n".join(ordered))
        assert unresolved({"fail_to_pass": ["t.py::e[1"], "pass_to_pass": []}, both), "in whatever order"
    assert unresolved({"fail_to_pass": [" test_calc.py::test_plain "], "pass_to_pass": []}, found) == []
    assert unresolved({"fail_to_pass": ["test_calc.py::test_eval[1 - 1-0]"], "pass_to_pass": []}, found)


def test_a_log_without_a_status_gives_no_reward(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("log", "expected.json", "reward.txt")]
    paths[1].write_text(json.dumps({"parser": "django", "fail_to_pass": ["a"], "pass_to_pass": []}))
    for log, code in (("Traceback: No module named django\n", 1), ("a (m.T) ... FAIL\n", 0)):
        paths[0].write_text(log)
        ran = subprocess.run(
            [sys.executable, swebench_judge.__file__, *map(str, paths)], check=False, capture_output=True
        )
        assert (ran.returncode, paths[2].exists()) == (code, code == 0)


def test_the_judge_writes_the_reward(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("log", "expected.json", "reward.txt")]
    paths[1].write_text(json.dumps({"parser": "pytest", "fail_to_pass": ["t.py::a"], "pass_to_pass": []}))
    for log, reward in (("PASSED t.py::a\n", "1"), ("FAILED t.py::a\n", "0"), ("", "0")):
        paths[0].write_text(log)
        main(*map(str, paths))
        assert paths[2].read_text().strip() == reward


def test_a_repository_that_is_the_runner_itself_may_be_worked_on() -> None:
    task = HarborTask(name="t", instruction="", image=None)
    given = ["src/_pytest/mark.py", "setup.cfg"]
    rule = shadow_rule(task, given, [*given, "_pytest/__init__.py"], frozenset({"_pytest"}))
    assert not rule(tarfile.TarInfo("src/_pytest/mark.py")) and not rule(tarfile.TarInfo("src/_pytest/new.py"))
    assert rule(tarfile.TarInfo("_pytest/__init__.py")) and rule(tarfile.TarInfo("setup.cfg"))
    other = shadow_rule(task, ["a.py"], ["a.py", "src/_pytest/mark.py"], frozenset({"_pytest"}))
    assert other(tarfile.TarInfo("src/_pytest/mark.py"))


# --------------------------------------------------------------------------------------------------- suite


def test_the_suite_says_how_to_get_its_tasks(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("swe-bench-verified")
    monkeypatch.delenv("SWE_BENCH_TASKS", raising=False)
    with pytest.raises(UsageError, match="SWE_BENCH_TASKS"):
        open_suite(suite)
    assert "agentgym convert" in suite.mend
    (instance,) = read_instances(written(tmp_path / "rows.jsonl", row(repository)))
    write_harbor_task(instance, tmp_path / "tasks")
    monkeypatch.setenv("SWE_BENCH_TASKS", str(tmp_path / "tasks"))
    assert [task.id for task in open_suite(suite).parts[0].tasks] == ["test-example__scales-7"]
