"""AgentBenchDB-v0: its rows, its rule, its hash; on rows of our own and, where AGENTBENCH_DATA has them, on its own."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.agentbench_tables import ADDED, ROWS, md5_after, write_agentbench

from agentgym.check import check_env
from agentgym.check.episodes import play
from agentgym.check.policies import idle_action, oracle_action
from agentgym.envs.agentbench.env import DATA_VARIABLE, AgentBenchDBEnv
from agentgym.envs.agentbench.questions import filled, is_right_answer, read_database_tasks, tables_hash
from agentgym.errors import CorruptDataError, ResetNeededError, UsageError
from agentgym.evals.suites import load_suite, open_suite
from agentgym.types import Message, ToolCall

REAL = Path(os.environ.get(DATA_VARIABLE, ""), "dbbench")
needs_data = pytest.mark.skipif(
    not (REAL / "standard.jsonl").is_file(), reason=f"needs AgentBench's in {DATA_VARIABLE}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_agentbench(tmp_path)


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments, "0"),))


def sql(query: str) -> Message:
    return call("execute_sql", query=query)


def test_rows_are_read_and_changes_that_sqlite_makes_otherwise_left_out(folder: Path) -> None:
    tasks = read_database_tasks(folder)
    assert list(tasks.questions) == ["valid-0", "test-0", "test-1", "test-2"]
    assert tasks.left_out == ("test-3",)
    assert tasks.questions["test-1"].text.startswith("Evidence: Films are books.\nThe table: The name")
    env = AgentBenchDBEnv(data_dir=folder)
    assert [len(env.tasks(split)) for split in ("valid", "test")] == [1, 3]
    with pytest.raises(UsageError, match="cannot grade"):
        env.reset(
            options={"task": type(env.tasks("test")[0])(id="x", split="test", seed=0, data={"question": "test-3"})}
        )


def test_gold_answers_score_one_and_others_and_silence_nothing(folder: Path) -> None:
    env = AgentBenchDBEnv(data_dir=folder)
    for task in (*env.tasks("test"), *env.tasks("valid")):
        assert play(env, oracle_action, task, np.random.default_rng(0)).is_success, task.id
        assert not play(env, lambda env, *_: idle_action(env), task, np.random.default_rng(0)).is_success
        env.reset(options={"task": task})
        assert env.step(call("commit_final_answer", answers=["Ulysses"]))[1] == 0.0, task.id


def test_the_table_is_graded_where_it_is_changed(folder: Path) -> None:
    env = AgentBenchDBEnv(data_dir=folder)
    for statements, reward in (
        ([ADDED], 1.0),
        ([ADDED, ADDED], 0.0),
        (["INSERT INTO `Film ratings` VALUES ('Ulysses', '4')"], 0.0),
        ([ADDED, "DELETE FROM `Film ratings` WHERE Title = 'EMMA'"], 0.0),  # equal without capitals
        ([ADDED, "DROP TABLE `Film ratings`"], 0.0),
        (["BEGIN", ADDED], 1.0),
    ):
        env.reset(options={"task": "test-2"})
        for statement in statements:
            env.step(sql(statement))
        assert env.step(call("commit_final_answer", answers=["done"]))[1] == reward, statements


def test_statements_see_rows_and_are_held(folder: Path) -> None:
    env = AgentBenchDBEnv(data_dir=folder)
    env.reset(options={"task": "test-0"})
    assert env.step(sql("SELECT COUNT(*) FROM `film ratings`"))[0][0].text == "[(3,)]"
    assert "no such table" in env.step(sql("SELECT * FROM other"))[0][0].text
    long = env.step(sql("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 500) SELECT i FROM n"))
    assert long[0][0].text.endswith("[TRUNCATED]") and len(long[0][0].text) == 811
    endless = env.step(sql("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n"))
    assert "took too long" in endless[0][0].text and not endless[4]["is_valid"]
    for refused in ("ATTACH DATABASE 'x.db' AS x", "PRAGMA writable_schema = 1", "SELECT zeroblob(2000000)"):
        assert env.step(sql(refused))[0][0].text.startswith("Error"), refused
    assert not Path("x.db").exists()
    assert env.step(call("commit_final_answer", answers=["3"]))[1] == 1.0, (
        "a statement that was ended ends nothing else"
    )


def test_the_kit_finds_nothing_wrong(folder: Path) -> None:
    report = check_env(lambda: AgentBenchDBEnv(data_dir=folder), num_episodes=2)
    failures = {check.name: check.detail for check in report.failures}
    assert set(failures) <= {"splits"}, failures  # none to train on


@pytest.mark.parametrize(
    ("given", "labels", "is_right"),
    [
        (["3"], ["3.0"], True),
        (["3.005"], ["3"], True),
        (["3.02"], ["3"], False),
        (["1,174"], ["1174"], True),
        (["12%"], ["12"], True),
        (["none"], ["0"], True),
        ([""], ["0.0"], True),
        (["b", "a"], ["a", "b"], True),
        (["a", "a"], ["a"], True),
        (["1", "1"], ["1"], False),
        (["'Emma'"], ["Emma"], True),
        (["emma"], ["Emma"], False),
    ],
)
def test_answers_are_compared_as_agentbench_does(given: list[str], labels: list[str], is_right: bool) -> None:
    assert is_right_answer(given, labels) == is_right


def test_the_hash_is_mysqls(folder: Path) -> None:
    tables = read_database_tasks(folder).questions["test-0"].tables
    database = filled(sqlite3.connect(":memory:"), tables)
    assert tables_hash(database, tables) == md5_after("")
    database.execute("UPDATE `Film ratings` SET `To par` = NULL")
    assert tables_hash(database, tables) != md5_after("")


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"label": 3}, "format"), ({"table": {"table_name": "x"}}, "table_info"), ({"type": ["INSERT"]}, "answer_md5")],
)
def test_wrong_rows_are_named(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    (tmp_path / "standard.jsonl").write_text(json.dumps({**ROWS[0], **changed}) + "\n")
    with pytest.raises(CorruptDataError, match=words):
        AgentBenchDBEnv(data_dir=tmp_path)


def test_without_files_it_says_where_they_go(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=DATA_VARIABLE):
        AgentBenchDBEnv()
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(UsageError, match=r"standard\.jsonl"):
        AgentBenchDBEnv(data_dir=empty)
    suite = load_suite("agentbench-db")
    with pytest.raises(UsageError, match=DATA_VARIABLE):
        open_suite(suite)
    (empty / "dbbench").symlink_to(folder)
    monkeypatch.setenv(DATA_VARIABLE, str(empty))
    assert len(open_suite(suite).parts[0].tasks) == 3
    with pytest.raises(ResetNeededError):
        AgentBenchDBEnv().state_key()


@needs_data
def test_agentbenchs_own_answers_score_one() -> None:
    env = AgentBenchDBEnv(data_dir=REAL)
    assert (len(env.tasks("test")), len(env.tasks("valid")), len(env.left_out)) == (295, 60, 5)
    for task in (*env.tasks("test"), *env.tasks("valid")):
        assert play(env, oracle_action, task, np.random.default_rng(0)).is_success, task.id
