"""``agentgym eval --prices``, ``--max-cost``, and policies of several attempts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_openai import FakeOpenAI, completion

from agentgym.evals.episodes import read_groups, read_rows

Command = Callable[..., Any]


@pytest.fixture
def policy() -> Iterator[str]:
    """An endpoint that guesses 1 and says how much of the prompt it had kept."""

    def play(body: dict[str, Any]) -> Any:
        answer = completion(None, ("guess", json.dumps({"number": 1})), prompt_tokens=1000, completion_tokens=100)
        answer["usage"]["prompt_tokens_details"] = {"cached_tokens": 600}
        return answer

    server = FakeOpenAI(play)
    yield f"openai:{server.url}?model=large"
    server.close()


ASKED = ("highest=2", "--num-envs", "1", "--episodes", "4")
OF_A_TURN = (400 * 2 + 600 * 1 + 100 * 10) / 1e6


def test_episodes_have_a_cost(run: Command, guess: str, policy: str) -> None:
    value = run("eval", guess, *ASKED, "--policy", policy, "--prices", "2,1,10", "--json").json
    rows = read_rows(Path(value["run_dir"]))
    assert [row["cost"] for row in rows] == [pytest.approx(row["num_turns"] * OF_A_TURN) for row in rows]
    assert value["cost"] == pytest.approx(sum(row["cost"] for row in rows))
    assert value["mean_cost"] == pytest.approx(value["cost"] / 4)
    assert json.loads(Path(value["run_dir"], "prices.json").read_text())["*"]["cached_input"] == 1.0
    again = run("eval", "--resume", value["run_dir"], "--json").json
    assert again["cost"] == pytest.approx(value["cost"]), "the prices are kept with the evaluation"
    dearer = run("eval", "--resume", value["run_dir"], "--prices", "4,2,20", "--json").json
    assert dearer["cost"] == pytest.approx(2 * value["cost"]), "and may be changed without playing"
    scored = run("eval", "--rescore", value["run_dir"], "scorer.kind=outcome", "--json").json
    assert scored["cost"] == pytest.approx(dearer["cost"])
    page = run("view", value["run_dir"], "--json").json["report"]
    assert "<dt>cost</dt>" in Path(page).read_text()


@pytest.mark.parametrize("is_suite", [False, True])
def test_a_complete_evaluation_is_priced_again_without_its_endpoint(run: Command, guess: str, is_suite: bool) -> None:
    Path("mine.toml").write_text(f'name = "mine"\nversion = 1\n[[parts]]\nenv = "{guess}"\nnum_tasks = 4\n')
    asked = ("mine.toml",) if is_suite else (guess, *ASKED)
    guesses = completion(None, ("guess", '{"number": 1}'), prompt_tokens=1000, completion_tokens=100)
    server = FakeOpenAI(lambda body: guesses)
    assert run("eval", *asked, "--policy", f"openai:{server.url}", "--run-dir", "here").code == 0
    server.close()
    again = run("eval", "--resume", "here", "--prices", "2,10", "--json").json
    found = again["results"][0]["summary"] if is_suite else again
    assert found["cost"] == pytest.approx(found["mean_turns"] * 4 * (1000 * 2 + 100 * 10) / 1e6)
    (rows,) = Path("here").rglob("episodes.jsonl")
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[1:]))  # one episode is left to play
    assert "cannot be reached" in run("eval", "--resume", "here").assert_one_line_error()


def test_without_a_price_there_is_a_dash(run: Command, guess: str, policy: str) -> None:
    value = run("eval", guess, *ASKED, "--policy", policy, "--json").json
    assert (value["cost"], value["mean_cost"]) == (None, None)
    shown = run("eval", "--resume", value["run_dir"]).out
    assert "–" in next(line for line in shown.splitlines() if line.startswith("cost"))
    scripted = run("eval", guess, *ASKED, "--policy", "oracle", "--prices", "1,1", "--json").json
    assert scripted["cost"] is None, "a script has no tokens, which is not the same as none that cost"


def test_a_limit_to_the_cost(run: Command, guess: str, policy: str) -> None:
    given = ("eval", guess, *ASKED, "--policy", policy)
    needs = run(*given, "--max-cost", "1").assert_one_line_error()
    assert "--max-cost needs the price of openai:" in needs
    stopped = run(*given, "--prices", "2,1,10", "--max-cost", "0.0001", "--run-dir", "few").assert_one_line_error(1)
    assert "go on: agentgym eval --resume few" in stopped
    assert len(read_rows(Path("few"))) == 1
    assert run("eval", "--resume", "few", "--json").json["num_episodes"] == 4
    assert run(*given, "--prices", "cheap").assert_one_line_error().count("expected prices") == 1


def test_suites_have_a_column_of_costs(run: Command, guess: str, policy: str, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(f'name = "one"\nversion = 1\n[[parts]]\nenv = "{guess}"\nnum_tasks = 2\n')
    asked = (
        "eval",
        str(tmp_path / "one.toml"),
        "--policy",
        policy,
        "--policy",
        "oracle",
        "--prices",
        "2,1,10",
        "--json",
    )
    value = run(*asked).json
    costs = [result["summary"]["cost"] for result in value["results"]]
    assert costs[0] > 0 and costs[1] is None
    saved = json.loads(Path(value["run_dir"], "results.json").read_text())
    assert [result["summary"]["cost"] for result in saved] == costs
    table = Path(value["run_dir"], "results.md").read_text().splitlines()
    assert "| cost |" in table[2] and "| – |" in table[5]


def test_attempts_are_policies(run: Command, guess: str) -> None:
    plain = run("eval", guess, "highest=3", "--policy", "random", "--episodes", "12", "max_turns=1", "--json").json
    several = ("--episodes", "12", "max_turns=1", "--run-dir")
    retried = run(
        "eval", guess, "highest=3", "--policy", "retry:random,attempts=6,by=oracle", *several, "many", "--json"
    ).json
    assert retried["success"] > plain["success"] and 1 < retried["mean_attempts"] <= 6
    shown = run("eval", "--resume", "many").out
    assert "per episode; tokens, time and cost are of all" in shown and "by=oracle" in shown
    refused = run("eval", guess, "--policy", "best:random,attempts=2", "verify.kind=f1").assert_one_line_error()
    assert "uses the true result, which the agent does not know" in refused
    page = Path(run("view", "many", "--json").json["report"]).read_text()
    assert "<dt>attempts</dt>" in page


def test_a_judge_chooses_among_attempts(run: Command, guess: str) -> None:
    def judge(body: dict[str, Any]) -> Any:
        likes = 0.9 if "guess: 2" in str(body["messages"]) else 0.1
        return completion(json.dumps({"reason": "so", "scores": {"1": likes}}))

    server = FakeOpenAI(judge)
    try:
        asked = ("highest=3", "max_turns=1", "--policy", "best:random,attempts=3", "--episodes", "8")
        verify = ("verify.kind=judge", f"verify.model=openai:{server.url}?model=m")
        value = run("eval", guess, *asked, *verify, "--json").json
    finally:
        server.close()
    folder = Path(value["run_dir"])
    chosen = [group.trajectories[0] for group in read_groups(folder)]
    tried = [[one.turns[0].action.text for one in (episode, *episode.attempts)] for episode in chosen]
    assert [texts[0] == "guess: 2" for texts in tried] == ["guess: 2" in texts for texts in tried]
    assert any(texts[0] == "guess: 2" for texts in tried) and value["mean_attempts"] == 3.0
    assert (folder / "judge.jsonl").is_file(), "its verdicts are remembered with the evaluation"
