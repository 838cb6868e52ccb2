"""Files of tasks: what text they may hold, and what is said of a file that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.games.try_again import read_questions as read_attempts
from agentgym.envs.rows import read_rows
from agentgym.envs.search.question_files import read_questions
from agentgym.errors import CorruptDataError
from agentgym.tools.retrieval.corpus import read_jsonl

ODD = "one\u2028two\x85three\x0cfour é 日本"
ROWS = [{"id": name, "question": ODD, "answers": [name], "title": ODD, "text": ODD} for name in ("a", "b")]
READERS: dict[str, Callable[[Path], list[Any]]] = {
    "rows": lambda path: [row["text"] for row in read_rows(path)],
    "questions": lambda path: [question.text for question in read_questions(str(path))],
    "attempts": lambda path: [question for question, _ in read_attempts(path)],
    "corpus": lambda path: [document.text for document in read_jsonl(path)],
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n \n"])
def test_lines_end_where_json_lines_end(tmp_path: Path, name: str, mark: str, end: str) -> None:
    path = tmp_path / "rows.jsonl"
    text = "".join(json.dumps(row, ensure_ascii=False) + end for row in ROWS)
    path.write_text(mark + text, encoding="utf-8", newline="")
    assert READERS[name](path) == [ODD, ODD]


@pytest.mark.parametrize("name", READERS)
def test_a_file_in_another_encoding_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows.jsonl"
    text = json.dumps({**ROWS[0], "title": "", "question": "Wo?", "text": "Zürich"}, ensure_ascii=False)
    path.write_bytes(text.encode("latin-1", "replace"))
    with pytest.raises(CorruptDataError, match=r"rows\.jsonl.*utf-8"):
        READERS[name](path)


@pytest.mark.parametrize("name", READERS)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows.jsonl"
    for line, said in (('{"id": "c", "quest', "line 2"), ("[1, 2]", r"line 2|row 1|question 1")):
        path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n", encoding="utf-8")
        with pytest.raises(CorruptDataError, match=said) as raised:
            READERS[name](path)
        assert "sequence item" not in str(raised.value)


def test_two_questions_do_not_share_an_id(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    twice = [ROWS[0], ROWS[0]]
    path.write_text("\n".join(map(json.dumps, twice)), encoding="utf-8")
    assert [question.id for question in read_questions(str(path))] == ["a"]
    path.write_text("\n".join(map(json.dumps, [*twice, ROWS[0] | {"question": "Why?"}])), encoding="utf-8")
    with pytest.raises(CorruptDataError, match="question 2 has the id 'a' of another question"):
        read_questions(str(path))
