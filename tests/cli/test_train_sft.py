"""agentgym train with demonstrations from files, recorded runs and a teacher."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_openai import FakeOpenAI, completion

Command = Callable[..., Any]
SMALL = (
    'model={"hidden_size": 32, "num_layers": 1, "head_dim": 16, "vocab_size": 320, "max_context_tokens": 320}',
    "num_steps=0",
    "sft.num_demos=0",
    "sft.num_epochs=1",
    "sft.batch_size=2",
    "--json",
)
USER = {"role": "user", "content": "Guess my number."}
DONE = {"role": "assistant", "content": "I guess 3."}


def train(run: Command, guess: str, *arguments: str) -> Any:
    given = {argument.partition("=")[0] for argument in arguments}
    small = [argument for argument in SMALL if argument.partition("=")[0] not in given]
    return run("train", "tiny", f"env.id={guess}", *small, *arguments)


def lines(name: str, *rows: Any) -> str:
    Path(name).write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return f'sft.files=["{name}"]'


def test_a_file_trains_without_an_oracle_and_without_episodes(run: Command, guess_file: Path) -> None:
    chat = {"messages": [USER, DONE]}
    long = {"messages": [{"role": "user", "content": "Guess. " * 400}, DONE]}
    done = run("train", "tiny", f"env.id={guess_file}:NoOracle-v0", *SMALL[:-1], lines("a.jsonl", chat, long, chat))
    assert done.code == 0, done
    assert "3 conversations, 2 used; 1 left out as longer than model.max_context_tokens=320" in " ".join(
        done.err.split()
    )
    rows = [json.loads(line) for line in Path("runs/tiny-001/metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["sft", "eval"]


def test_a_run_learns_from_an_endpoint_and_another_from_its_record(run: Command, guess: str) -> None:
    def play(body: dict[str, Any]) -> Any:
        num_said = sum(row["role"] == "assistant" for row in body["messages"])
        return completion(None, ("guess", json.dumps({"number": num_said + 1})))

    server = FakeOpenAI(play)
    try:
        asked = ("env.kwargs.highest=3", "eval.split=valid")
        done = train(run, guess, *asked, f"sft.teacher=openai:{server.url}?model=m", "sft.num_demos=4")
        assert done.json["steps"] == 0
        run("eval", guess, "highest=3", "--policy", f"openai:{server.url}", "--episodes", "3", "--json")
    finally:
        server.close()
    (evaluation,) = (path.parent for path in Path("runs").glob("*/episodes.jsonl"))
    assert train(run, guess, *asked, f'sft.runs=["{evaluation}"]').json["steps"] == 0
    assert len(list(Path("runs").glob("tiny-*/model/config.json"))) == 2


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"messages": [USER, DONE]}, "{"], "a.jsonl, line 2: not JSON"),
        (
            [{"messages": [USER, DONE], "tools": [{"name": "add", "parameters": {"properties": []}}]}],
            "line 1: the parameters of the tool add are no JSON schema: properties is [], expected an object",
        ),
        ([{"messages": [USER]}], "line 1: no message of the role assistant"),
        ([{"messages": [{"role": "robot", "content": "x"}]}], "unknown role 'robot', expected system, developer, user"),
        (
            [
                {
                    "messages": [
                        USER,
                        {"role": "assistant", "tool_calls": [{"function": {"name": "fly", "arguments": "{}"}}]},
                    ]
                }
            ],
            "a call of the unknown tool 'fly'",
        ),
    ],
)
def test_bad_rows_are_one_line(run: Command, guess: str, rows: list[Any], said: str) -> None:
    assert said in train(run, guess, lines("a.jsonl", *rows)).assert_one_line_error()


def test_bad_sources_are_one_line(run: Command, guess: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("empty").mkdir()
    Path("a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for arguments, said in (
        (['sft.files=["missing.jsonl"]'], "there is no file missing.jsonl"),
        (['sft.files=["a.parquet"]'], "needs the extra 'parquet': pip install -e '"),
        (['sft.runs=["empty"]'], "empty holds no recorded episodes"),
        (['sft.runs=["nowhere"]'], "there is no folder nowhere"),
        (["sft.teacher=openai:http://h/v1?mode=a", "sft.num_demos=2"], "did you mean 'model'?"),
        (["sft.keep=some"], "sft.keep"),
    ):
        assert said in train(run, guess, *arguments).assert_one_line_error()


def test_what_is_found_when_a_run_has_begun_is_its_last_line(run: Command, guess: str) -> None:
    server = FakeOpenAI(lambda body: 500)
    server.close()
    for arguments, said in (
        ([f"sft.teacher=openai:{server.url}", "sft.num_demos=2"], "cannot be reached"),
        ([lines("a.jsonl", {"messages": [USER, DONE]})], "make 1 rows, fewer than sft.batch_size=2: lower"),
        ([lines("b.jsonl", {"messages": [{**USER, "content": "x" * 999}, DONE]})], "no conversation is left to learn"),
    ):
        done = train(run, guess, *arguments)
        last = done.err.splitlines()[-1]
        assert (done.code, done.json["error"]) == (2, last.removeprefix("error: ")) and said in last, done
