"""agentgym eval --policy openai:URL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from testkit.fake_openai import FakeOpenAI, completion

Command = Callable[..., Any]


def count_up(body: dict[str, Any]) -> Any:
    """Guesses one after the other number."""
    num_said = sum(row["role"] == "assistant" for row in body["messages"])
    return completion(None, ("guess", json.dumps({"number": num_said + 1})), prompt_tokens=9, completion_tokens=4)


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    made = FakeOpenAI(count_up)
    yield made
    made.close()


def test_json(run: Command, guess: str, server: FakeOpenAI) -> None:
    policy = f"openai:{server.url}?model=m"
    asked = ("highest=4", "--policy", policy, "--episodes", "3", "--max-new-tokens", "77", "--temperature", "0")
    value = run("eval", guess, *asked, "--json").json
    assert (value["policy"], value["success"], value["statuses"]) == (policy, 1.0, {"completed": 3})
    assert value["mean_tokens"] == pytest.approx(4 * value["mean_turns"])
    assert {(body["max_tokens"], body["temperature"]) for body in server.requests} == {(77, 0.0)}
    rows = Path(value["run_dir"], "episodes.jsonl")
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:1]))
    again = run("eval", "--resume", value["run_dir"], "--json").json
    assert again == value | {"mean_seconds": ANY, "num_unpriced": ANY}
    assert again["num_unpriced"] > value["num_unpriced"]  # what was played again was asked for again


def test_the_model_that_answered_is_recorded(run: Command, guess: str, server: FakeOpenAI) -> None:
    server.play = lambda body: completion("guess: 1") | {"model": f"m-2026-{len(server.requests) % 2}"}
    asked = ("eval", guess, "max_turns=2", "--policy", f"openai:{server.url}?model=m", "--episodes", "2")
    value = run(*asked, "--json").json
    assert value["models"] == ["m-2026-0", "m-2026-1"]
    rows = [json.loads(line) for line in Path(value["run_dir"], "episodes.jsonl").read_text().splitlines()]
    assert sorted({name for row in rows for name in row["models"]}) == value["models"]
    assert "answered by m-2026-0, m-2026-1" in " ".join(run(*asked).out.split())


def test_calls_that_the_server_returns_as_text_are_noted_once(run: Command, guess: str, server: FakeOpenAI) -> None:
    asked = ("eval", guess, "max_turns=2", "--policy", f"openai:{server.url}?model=m", "--episodes", "3")
    assert "note:" not in run(*asked).err
    server.play = lambda body: completion('<tool_call>\n{"name": "guess", "arguments": {"number": 1}}\n</tool_call>')
    told = " ".join(run(*asked).err.split())
    assert told.count("a completion holds a call as text (<tool_call>)") == 1 and "tools=text&format=NAME" in told
    read = (*asked[:4], f"openai:{server.url}?model=m&tools=text&format=hermes", *asked[5:])
    assert "note:" not in run(*read).err


def test_a_suite(run: Command, server: FakeOpenAI) -> None:
    value = run("eval", "household-valid", "--policy", f"openai:{server.url}", "--episodes", "1", "--json").json
    assert value["results"][0]["outcome"] == "done"
    assert value["results"][0]["summary"]["success"] == 0.0


def test_completions_that_the_limit_ends_are_told(run: Command, guess: str, server: FakeOpenAI) -> None:
    told = "completions per episode end at the limit of tokens; raise it by --max-new-tokens"
    asked = ("--policy", f"openai:{server.url}", "--episodes", "2")
    assert told not in run("eval", guess, *asked).out
    server.play = lambda body: completion("Let me think about", finish="length")
    out = run("eval", guess, "max_turns=3", *asked).out
    assert f"3.00 {told}" in " ".join(out.split())
    value = run("eval", guess, "max_turns=3", *asked, "--json").json
    assert (value["mean_truncated_completions"], value["mean_turns"]) == (3.0, 3.0)
    suite = run(
        "eval", "household-valid", "--policy", f"openai:{server.url}", "--episodes", "1", "--run-dir", "suite"
    ).out
    assert told in suite
    assert "truncated completions per episode |" in Path("suite/results.md").read_text()


def test_a_failing_endpoint_is_not_blamed_on_the_environment(run: Command, guess: str, server: FakeOpenAI) -> None:
    server.play = lambda body: 500
    policy = f"openai:{server.url}?num_tries=1"
    said = run("eval", guess, "--policy", policy, "--episodes", "2", "--run-dir", "here").assert_one_line_error(1)
    assert "failed 1 times" in said
    assert "The policy failed, not the environment: look at its code, its endpoint or, in training, its engine" in said
    assert "agentgym check" not in said and "max_failure_rate" not in said
    assert said.endswith("to run the failed episodes again: agentgym eval --resume here\n")
    server.play = count_up
    assert run("eval", "--resume", "here", "--json").json["statuses"] == {"truncated_turns": 2}


def test_bad_input(run: Command, guess: str, server: FakeOpenAI) -> None:
    assert (
        "did you mean 'model'?" in run("eval", guess, "--policy", "openai:http://h/v1?mode=a").assert_one_line_error()
    )
    refused = run("eval", guess, "--policy", f"openai:{server.url}", "--codec", "hermes").assert_one_line_error()
    assert "leave out --codec" in refused
    server.models = []
    unnamed = run("eval", guess, "--policy", f"openai:{server.url}").assert_one_line_error()
    assert unnamed.endswith("lists no models; name one by ?model=NAME\n")
    server.models, server.play = ["only"], lambda body: 401
    assert "set OPENAI_API_KEY" in run("eval", guess, "--policy", f"openai:{server.url}").assert_one_line_error()


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/v1?model=m", "http://127.0.0.1:9/v1"])
def test_an_endpoint_where_nobody_listens_is_refused_at_once(run: Command, guess: str, address: str) -> None:
    refused = run("eval", guess, "--policy", f"openai:{address}").assert_one_line_error()
    assert "http://127.0.0.1:9/v1 cannot be reached" in refused and "start its server" in refused
    assert not list(Path("runs").glob("*"))


def test_an_address_without_its_path_is_named(run: Command, guess: str, server: FakeOpenAI) -> None:
    server.play = lambda body: 404
    root = server.url.removesuffix("/v1")
    refused = run("eval", guess, "--policy", f"openai:{root}?model=m").assert_one_line_error()
    assert f"did you mean {root}/v1?" in refused


def test_a_worked_example_for_a_model_that_is_told_of_tools_in_words(
    run: Command, guess: str, server: FakeOpenAI
) -> None:
    server.play = lambda body: completion('<tool_call>\n{"name": "guess", "arguments": {"number": 1}}\n</tool_call>')
    policy = f"openai:{server.url}?model=m&tools=text"
    done = run("eval", guess, "highest=1", "--policy", policy, "--episodes", "1", "context.example_turns=1", "--json")
    assert done.json["success"] == 1.0
    system, asked, said, task = server.requests[0]["messages"]
    assert [row["role"] for row in (system, asked, said, task)] == ["system", "user", "assistant", "user"]
    assert '"name": "guess"' in system["content"] and "<tool_call>" in said["content"]
    refused = run("eval", guess, "--policy", f"openai:{server.url}", "context.example_turns=1").assert_one_line_error()
    assert "works with openai:URL?tools=text" in refused


def test_tools_that_the_model_never_sees_are_refused(run: Command, guess: str, server: FakeOpenAI) -> None:
    server.num_plain_tokens = 9
    policy = f"openai:{server.url}?model=m"
    asked = ("eval", guess, "--policy", policy, "--episodes", "2", "--num-envs", "1")  # with two, one may end before
    assert "tools=text" in run(*asked).assert_one_line_error()
    assert not list(Path("runs").glob("*"))


def test_a_lost_endpoint_is_a_failure_with_its_reason(run: Command, guess: str, server: FakeOpenAI) -> None:
    server.play = lambda body: 500
    policy = f"openai:{server.url}?model=m&num_tries=1"
    assert "status 500" in run("eval", guess, "--policy", policy, "--episodes", "2").assert_one_line_error(1)


def test_an_account_without_credit_ends_with_one_line_and_is_resumed(
    run: Command, guess: str, server: FakeOpenAI
) -> None:
    empty = (429, {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}})
    server.play = lambda body: empty if len(server.requests) > 8 else count_up(body)
    asked = ("eval", guess, "highest=4", "--policy", f"openai:{server.url}?model=m", "--episodes", "4")
    ran = run(*asked, "--num-envs", "1", "--run-dir", "here")
    told = " ".join(ran.err.split())
    assert (
        ran.code == 2
        and "has no credit left for this key; top up the account, then go on with --resume RUN_DIR" in told
    )
    num_played = len(Path("here/episodes.jsonl").read_text().splitlines())
    server.play = count_up
    value = run("eval", "--resume", "here", "--json").json
    assert num_played and (value["num_episodes"], value["success"]) == (4, 1.0)


def test_a_key_that_is_refused_in_the_middle_names_the_command_that_goes_on(
    run: Command, guess: str, server: FakeOpenAI
) -> None:
    server.play = lambda body: 401 if len(server.requests) > 8 else count_up(body)
    asked = ("eval", guess, "highest=4", "--policy", f"openai:{server.url}?model=m", "--num-envs", "1")
    error = run(*asked, "--episodes", "4", "--run-dir", "here").assert_one_line_error()
    assert "refuses the key" in error and "what was played is kept: agentgym eval --resume here" in error
    server.play = lambda body: 401
    error = run(*asked, "--episodes", "4", "--run-dir", "there").assert_one_line_error()
    assert "--resume" not in error and not Path("there").exists()


def test_a_parameter_that_requests_leave_out_is_in_the_journal(run: Command, guess: str, server: FakeOpenAI) -> None:
    refusal = (400, {"error": {"message": "property 'seed' is unsupported"}})
    server.play = lambda body: refusal if "seed" in body else count_up(body)
    asked = ("--policy", f"openai:{server.url}?model=m", "--episodes", "2", "--run-dir", "here")
    assert "note: this evaluation was begun with" not in run("eval", guess, *asked).err
    remark = f"{server.url} refuses the parameter seed; requests leave it out from now on"
    lines = [json.loads(line) for line in Path("here", "journal.jsonl").read_text().splitlines()]
    assert [line["remark"] for line in lines if "remark" in line] == [remark]
    resumed = run("eval", "--resume", "here")
    assert (resumed.code, "begun with other versions" in resumed.err) == (0, False)


def test_a_refused_temperature_ends_with_one_line(run: Command, guess: str, server: FakeOpenAI) -> None:
    refusal = (400, {"error": {"message": "Unsupported value.", "param": "temperature"}})
    server.play = lambda body: refusal if "temperature" in body else count_up(body)
    asked = ("eval", guess, "--policy", f"openai:{server.url}?model=m", "--episodes", "2", "--temperature")
    ran = run(*asked, "0.2")
    assert ran.code == 2 and "refuses temperature=0.2: set temperature to 1" in " ".join(ran.err.split())
    assert "refuses the parameter temperature; requests leave it out" in run(*asked, "1").err


def test_overflows_in_unknown_words_are_losses(run: Command, guess: str, server: FakeOpenAI) -> None:
    refusal = (400, {"error": {"message": "The scroll is full."}})
    server.play = lambda body: refusal if len(body["messages"]) > 6 else count_up(body)
    asked = ("highest=4", "--policy", f"openai:{server.url}?model=m", "--episodes", "8")
    ran = run("eval", guess, *asked, "--json")
    assert ran.err.count("note: episodes end as truncated_tokens") == 1
    assert (ran.json["num_failed"], set(ran.json["statuses"])) == (0, {"completed", "truncated_tokens"})
    assert ran.json["success"] == ran.json["statuses"]["completed"] / 8


def test_the_share_of_failed_episodes_is_told(run: Command, guess: str, server: FakeOpenAI) -> None:
    server.play = lambda body: 501 if len(body["messages"]) > 6 else count_up(body)
    asked = ("highest=4", "--policy", f"openai:{server.url}?model=m&num_tries=1", "--episodes", "8")
    told = " ".join(run("eval", guess, *asked).out.split())
    assert "of all episodes, which success leaves out; if they were losses, success would be" in told
