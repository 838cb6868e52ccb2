"""GAIA-v0: its files, its rule for answers, its tools; on questions of our own in its schema."""

from __future__ import annotations

import json
import re
import string
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from testkit.gaia_rows import ROWS, write_gaia

from agentgym.check import check_env
from agentgym.envs.gaia.env import GAIAEnv, read_gaia
from agentgym.errors import CorruptDataError, UnknownNameError, UsageError
from agentgym.evals.suites import load_suite, open_suite
from agentgym.scoring.gaia import is_gaia_answer
from agentgym.tools.retrieval.types import Document, Hit
from agentgym.tools.web.cassette import PAGE
from agentgym.types import Message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_gaia(tmp_path)


def gaia(folder: Path, **arguments: Any) -> GAIAEnv:
    return GAIAEnv(data_dir=folder, sandbox="process", max_sandboxes=4, **arguments)


# -------------------------------------------------------------------------------------------------------------- rule


@pytest.mark.parametrize(
    ("answer", "reference", "is_right"),
    [
        ("1000", "1000", True),
        ("$1,000.0", "1000", True),
        ("1000 dollars", "1000", False),
        ("17%", "17", True),
        ("", "0", False),
        ("1042", "1,042", False),  # a reference with a comma is a list of two
        ("inf", "12", False),
        ("-3.5", "-3.5", True),
        ("Blue,RED; yellow", "blue, red, yellow", True),
        ("red, blue, yellow", "blue, red, yellow", False),
        ("blue, red", "blue, red, yellow", False),
        ("1, 2.0, x", "1; 2; X", True),
        ("it's, b", "its, b", False),
        ("Sea gull.", "seagull", True),
        ("sea-gull", "Sea Gull", True),
        ("gull", "seagull", False),
    ],
)
def test_answers_are_compared_as_gaias_leaderboard_does(answer: str, reference: str, is_right: bool) -> None:
    assert is_gaia_answer(answer, reference) == is_right
    assert _literally(answer, reference) == is_right


def _literally(answer: str, reference: str) -> bool:
    """The leaderboard's rules, step by step."""

    def is_number(text: str) -> bool:
        return bool(re.fullmatch(r"[-+]?\d+(\.\d+)?", text.strip()))

    def number(text: str) -> float:
        for sign in "$%,":
            text = text.replace(sign, "")
        return float(text) if is_number(text) else float("inf")

    def text_of(text: str) -> str:
        return "".join(sign for sign in text.lower() if not sign.isspace())

    if is_number(reference):
        return number(answer) == float(reference)
    if "," in reference or ";" in reference:
        given, wanted = answer.replace(";", ",").split(","), reference.replace(";", ",").split(",")
        return len(given) == len(wanted) and all(
            number(one) == float(other) if is_number(other) else text_of(one) == text_of(other)
            for one, other in zip(given, wanted, strict=True)
        )
    plain = [text_of(one).translate(str.maketrans("", "", string.punctuation)) for one in (answer, reference)]
    return plain[0] == plain[1]


# ------------------------------------------------------------------------------------------------------------- files


def test_questions_are_read_with_their_files_and_hidden_answers_left_out(folder: Path) -> None:
    questions = read_gaia(folder)
    assert list(questions) == ["q-1", "q-2", "q-3"]
    assert questions["q-1"].path == folder / "validation/q-1.csv" and questions["q-2"].path is None
    assert [one.level for one in questions.values()] == ["1", "2", "3"]
    env = gaia(folder, level=2)
    assert [task.id for task in env.tasks("valid")] == ["q-2"]
    with pytest.raises(UsageError, match="nothing can grade"):
        env.tasks("test")
    with pytest.raises(UnknownNameError):
        env.tasks("train")


def test_parquet_is_read_too(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([{**row, "Level": str(row["Level"]), "Annotator Metadata": None} for row in ROWS])
    parquet.write_table(table, folder / "validation/metadata.parquet")
    (folder / "validation/metadata.jsonl").unlink()
    assert [one.answer for one in read_gaia(folder).values()] == ["1042", "blue, red, yellow", "seagull"]


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        ({"file_name": "gone.pdf"}, UsageError, "gone.pdf is missing"),
        ({"file_name": "../metadata.jsonl"}, CorruptDataError, "no name of a file"),
        ({"task_id": "q-2"}, CorruptDataError, "twice"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(
    tmp_path: Path, row: dict[str, Any], error: type[Exception], words: str
) -> None:
    write_gaia(tmp_path, [ROWS[1], {**ROWS[2], **row}])
    with pytest.raises(error, match=words):
        read_gaia(tmp_path)


def test_missing_data_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"validation/metadata\.jsonl"):
        read_gaia(tmp_path)
    write_gaia(tmp_path)
    with pytest.raises(UsageError, match="level '4'"):
        gaia(tmp_path, level="4")
    rows = [{key: value for key, value in ROWS[0].items() if key != "Question"}]
    broken = tmp_path / "broken"
    write_gaia(broken, [ROWS[1]])
    (broken / "validation/metadata.jsonl").write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(CorruptDataError, match="Question"):
        read_gaia(broken)
    suite = load_suite("gaia")
    monkeypatch.delenv("GAIA_DATA", raising=False)
    with pytest.raises(UsageError, match="GAIA_DATA is not set"):
        open_suite(suite)
    monkeypatch.setenv("GAIA_DATA", str(tmp_path / "home"))
    write_gaia(tmp_path / "home/2023")
    assert len(open_suite(suite).parts[0].tasks) == 3


# ------------------------------------------------------------------------------------------------------- environment


def test_the_kit_finds_nothing_wrong(folder: Path) -> None:
    report = check_env(lambda: gaia(folder), num_episodes=1)
    failures = {check.name: check.detail for check in report.failures}
    assert set(failures) <= {"splits"}, failures  # one of three


def test_right_answers_score_one_and_wrong_ones_and_silence_nothing(folder: Path) -> None:
    env = gaia(folder, max_turns=2)
    for task in env.tasks("valid"):
        env.reset(options={"task": task})
        assert env.task_type == f"level {ROWS[int(task.id[-1]) - 1]['Level']}"
        _, reward, terminated, _, info = env.step(env.oracle())
        assert (reward, terminated, info["success"]) == (1.0, True, True), task.id
        env.reset(options={"task": task})
        assert env.step("submit: 7")[1] == 0.0
        env.reset(options={"task": task})
        _, reward, terminated, _, info = env.step(Message("assistant", "Sorry."))
        assert not terminated and not info["is_valid"]
        assert env.step(Message("assistant", "Sorry."))[3], "out of turns, without an outcome"
    env.reset(options={"task": "q-3"})
    assert env.step(Message("assistant", "It is clear.\nFINAL ANSWER: Sea gull"))[4]["success"]
    env.close()


def test_the_questions_file_is_in_the_workspace_and_the_answers_are_not(folder: Path) -> None:
    env = gaia(folder)
    said = env.reset(options={"task": "q-1"})[0][0].text
    assert "q-1.csv in the workspace" in said
    assert {tool.name for tool in env.tools} == {"read_file", "python", "bash", "submit"}
    read = "python: open('q-1.csv', 'rb').read()"
    assert "b'number\\r\\n1000\\r\\n42\\r\\n\\xff'" in env.step(read)[0][0].text
    assert env.step("bash: ls")[0][0].text.split() == ["q-1.csv"]
    snapshot = env.snapshot()
    assert env.step("submit: 1042")[4]["success"]
    env.restore(snapshot)
    assert env.step("bash: ls")[0][0].text.split() == ["q-1.csv"]
    env.close()


def test_the_web_is_searched_where_an_engine_is_named(folder: Path, tmp_path: Path) -> None:
    tape = tmp_path / "web.jsonl"
    recorded_web(tape)
    env = gaia(folder, engine="cassette", cassette=str(tape), cassette_date="2026-11-25")
    env.reset(options={"task": "q-3"})
    assert {"search", "open", "find"} < {tool.name for tool in env.tools}
    shown = env.step("search: birds at the sea")[0][0].text
    assert "https://birds.example/" in shown
    assert "seagull" in env.step("open: https://birds.example/")[0][0].text
    assert "1 found" in env.step("find: chips")[0][0].text
    assert env.step("submit: seagull")[4]["success"]
    env.close()


def recorded_web(path: Path) -> None:
    """Write a cassette with one search and one page."""
    hit = Hit("https://birds.example/", "Birds of the sea", "Who eats chips?", 1.0)
    page = Document("https://birds.example/", "Birds", "The seagull eats chips.", "https://birds.example/")
    answers = [("brave", "birds at the sea", 5, [asdict(hit)]), (PAGE, "https://birds.example/", 0, asdict(page))]
    lines = [
        {"key": {"engine": engine, "query": query, "k": k, "date": "2026-11-25"}, "answer": answer}
        for engine, query, k, answer in answers
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
