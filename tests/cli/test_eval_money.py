"""Money and weights where episodes fail: what was spent, what valid episodes cost, and one weight per number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_openai import FakeOpenAI, completion

from agentgym.evals.episodes import read_rows

Command = Callable[..., Any]

ENV = '''
"""Episodes that fail after their first turn, on tasks and trials that a file names."""
from pathlib import Path

from agentgym import Message, Task, ToolEnv, register, tool


class Flaky(ToolEnv):
    """Guess 1. Every task fails as often as ``faults`` says; odd tasks cannot be won."""

    max_turns = 2

    def __init__(self, faults: int = 0, lost: int = 0) -> None:
        super().__init__()
        self.faults, self.lost = faults, lost

    def start(self, task: Task) -> str:
        self.number = int(task.id.rpartition("-")[2])
        counts = Path("counts")
        counts.mkdir(exist_ok=True)
        self.count = counts / task.id
        self.played = int(self.count.read_text()) if self.count.is_file() else 0
        self.count.write_text(str(self.played + 1))
        return "Guess."

    @tool
    def guess(self, number: int) -> str:
        """Guess a number."""
        if self.played < self.faults or (self.number % 2 == 0 and self.played % 12 < 3 * self.lost):
            raise RuntimeError("the service is down")
        self.finish(1.0 if self.number % 2 == 0 else 0.0)
        return "Done."

    def oracle(self) -> Message:
        return self.parse_action("guess: 1")


register("Flaky-v0", Flaky)
'''


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("flaky.py").write_text(ENV)
    return "flaky.py:Flaky-v0"


class Billed:
    """An endpoint that adds up what it answered, its own checks included."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any]) -> None:
        self.num_billed = 0
        self.answer = answer
        self.server = FakeOpenAI(self.play)
        self.name = f"openai:{self.server.url}?model=only"

    def play(self, body: dict[str, Any]) -> Any:
        self.num_billed += 1
        return self.answer(body)

    def cost(self) -> float:
        """Return the money of all requests at 10 per million prompt tokens and 20 per million sampled ones."""
        checks = self.server.num_plain_requests * (self.server.num_plain_tokens * 10 + 20)
        return (self.num_billed * (1000 * 10 + 100 * 20) + checks) / 1e6


def guessed(body: dict[str, Any]) -> Any:
    return completion(None, ("guess", json.dumps({"number": 1})), prompt_tokens=1000, completion_tokens=100)


def test_spent_money_is_that_of_every_request(run: Command, flaky: str) -> None:
    """Each task fails twice before it is valid: three requests are paid, and one is of the valid episode."""
    endpoint = Billed(guessed)
    value = run("eval", flaky, "faults=2", "--episodes", "4", "--policy", endpoint.name, "--prices", "10,20", "--json")
    found = value.json
    assert endpoint.num_billed == 12 and endpoint.server.num_plain_requests >= 1
    assert found["cost"] == pytest.approx(4 * 0.012) and found["mean_cost"] == pytest.approx(0.012)
    assert found["spent"] == pytest.approx(endpoint.cost()) and found["num_unpriced"] == 0
    again = run("eval", "--resume", found["run_dir"])
    line = next(line for line in again.out.splitlines() if line.startswith("cost"))
    assert "0.012 per valid episode" in line and f"spent in all: {endpoint.cost():.3g}" in line
    doubled = run("eval", "--resume", found["run_dir"], "--prices", "20,40", "--json").json
    assert doubled["spent"] == pytest.approx(2 * endpoint.cost()), "prices apply to what was spent before"
    endpoint.server.close()


def test_a_limit_of_money_counts_failed_attempts(run: Command, flaky: str) -> None:
    endpoint = Billed(guessed)
    asked = ("eval", flaky, "faults=1000", "--episodes", "50", "--num-envs", "1", "--policy", endpoint.name)
    stopped = run(*asked, "--prices", "10,20", "--max-cost", "0.02", "--run-dir", "few").assert_one_line_error(1)
    assert "the budget of --max-cost 0.02 is spent" in stopped and endpoint.num_billed == 2
    endpoint.server.close()


def test_judges_and_unreadable_answers_are_spent_money(run: Command, flaky: str) -> None:
    verdict = completion(json.dumps({"reason": "so", "scores": {"1": 1.0}}), prompt_tokens=1000, completion_tokens=100)
    judge = Billed(
        lambda body: (
            verdict if judge.num_billed % 2 == 0 else completion("no", prompt_tokens=1000, completion_tokens=100)
        )
    )
    model = f"scorer.model=openai:{judge.server.url}?model=only"
    asked = ("eval", flaky, "--episodes", "3", "--policy", "oracle", "scorer.kind=judge", "scorer.rubric=good?", model)
    found = run(*asked, "--prices", "10,20", "--json").json
    assert found["spent"] == pytest.approx(judge.cost()) and found["cost"] is None, "a script costs nothing itself"
    told = run(*asked, "--prices", "10,20", "--run-dir", "told").out
    assert "– (the policy is no endpoint); spent in all:" in " ".join(told.split())
    free = run(*asked, "--prices", "10,20", "--run-dir", "again", "--json").json
    scored = run("eval", "--rescore", "again", "scorer.kind=outcome", "--json").json
    assert scored["spent"] == pytest.approx(free["spent"]), "a new scoring keeps what the episodes cost"
    judge.server.close()


def test_no_price_and_no_counts_are_told_apart(run: Command, flaky: str) -> None:
    def uncounted(body: dict[str, Any]) -> Any:
        return {**guessed(body), "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}

    endpoint = Billed(uncounted)
    endpoint.server.num_plain_tokens = 0
    asked = ("eval", flaky, "--episodes", "2", "--policy", endpoint.name)
    priced, free = run(*asked, "--prices", "1,1").out, run(*asked).out
    assert "– (the endpoint reports no token counts)" in priced and "– (the endpoint reports no token" in free
    endpoint.server.close()
    counted = Billed(guessed)
    assert (
        "– (no price for the policy in --prices)" in run("eval", flaky, "--episodes", "2", "--policy", counted.name).out
    )
    counted.server.close()


def lossy(run: Command, flaky: str, folder: str) -> dict[str, Any]:
    """Evaluate four trials of each task, where won tasks lose one of their trials and lost tasks lose none."""
    asked = ("--episodes", "9", "--repeats", "4", "--num-envs", "1", "--policy", "oracle", "--run-dir", folder)
    return dict(run("eval", flaky, "lost=1", *asked, "--json").json)


def test_a_number_and_its_interval_have_one_weight(run: Command, flaky: str) -> None:
    found = lossy(run, flaky, "a")
    assert found["num_failed"] > 0
    by_episode = sum(bool(row["success"]) for row in read_rows(Path("a"))) / (36 - found["num_failed"])
    assert by_episode != pytest.approx(5 / 9), "the weights differ here"
    assert found["success"] == pytest.approx(5 / 9) == found["repeats"]["pass_at"]["1"]
    assert found["mean_return"] == pytest.approx(5 / 9)
    assert found["success_low"] <= found["success"] <= found["success_high"]
    assert found["return_low"] <= found["mean_return"] <= found["return_high"]
    run("eval", flaky, "lost=1", "--episodes", "9", "--repeats", "4", "--policy", "random", "--run-dir", "b")
    (pair,) = run("compare", "a", "b", "--json").json["suites"]
    assert pair["difference"] == pytest.approx(pair["success_b"] - pair["success_a"])
    assert pair["difference_low"] <= pair["difference"] <= pair["difference_high"]
    page = Path(run("view", "a", "--json").json["report"]).read_text()
    assert "55.6%" in page and "0.556" in page
    from agentgym.report.now import now_of
    from agentgym.report.run_folder import open_run_folder

    assert ("success", "55.6%", False) in now_of(open_run_folder(Path("a")))


def test_requests_without_an_answer_are_told_as_unknown(run: Command, flaky: str, tmp_path: Path) -> None:
    """A server that is too slow, hangs up or is behind a gateway that gives up may bill the request all the same."""
    unanswered = [None, 504, b"<html>busy</html>"]

    def at_last(body: dict[str, Any]) -> Any:
        at = endpoint.num_billed - before[0]
        return guessed(body) if at > len(unanswered) else unanswered[at - 1]

    before = [0]
    endpoint = Billed(at_last)
    slow = f"{endpoint.name}&timeout_s=0.5&num_tries=2"
    found = run("eval", flaky, "--episodes", "1", "--policy", slow, "--prices", "10,20", "--json").json
    lines = [json.loads(line) for line in Path(found["run_dir"], "spent.jsonl").read_text().splitlines()]
    assert sum(line.get("has_tokens") is False for line in lines) == len(unanswered)
    assert found["num_unpriced"] == len(unanswered)
    assert found["spent"] == pytest.approx(endpoint.cost() - len(unanswered) * (1000 * 10 + 100 * 20) / 1e6)
    before[0] = endpoint.num_billed
    (tmp_path / "slow.toml").write_text(
        f'name = "slow"\nversion = 1\nlicence = "CC0-1.0"\n[[parts]]\nenv = "{flaky}"\nnum_tasks = 1\n'
    )
    policies = ("--policy", slow, "--policy", "random", "--prices", "10,20", "--run-dir", str(tmp_path / "slow"))
    told = run("eval", "slow.toml", *policies)
    assert told.code == 0, told.err
    written = [(tmp_path / "slow" / name).read_text() for name in ("results.md", "report.html")]
    assert all("at least" in text for text in (told.out, *written))
    endpoint.server.close()


def test_the_model_of_a_user_is_spent_money(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The customer of a domain is asked over loopback, whatever proxy the variables name, and its requests are paid."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.com")
    user = Billed(lambda body: completion("Where is my order?", prompt_tokens=1000, completion_tokens=100))
    told = json.dumps({"url": user.server.url, "model": "customer"})
    asked = ("eval", "agentgym/Retail-v0", f"user={told}", "--episodes", "1", "--policy", "idle")
    priced = f"openai:{user.server.url}?model=customer"
    (tmp_path / "prices.toml").write_text(f'["{priced}"]\ninput = 10.0\noutput = 20.0\n')
    found = run(*asked, "--prices", "10,20", "--json").json
    assert user.num_billed > 0 and found["num_failed"] == 0
    lines = [json.loads(line) for line in Path(found["run_dir"], "spent.jsonl").read_text().splitlines()]
    assert [line["model"] for line in lines] == [priced] * user.num_billed
    user.server.close()
