"""Tasks played several times, scored by named scorers, and scored anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.evals.episodes import read_groups, read_rows
from agentgym.evals.results_table import markdown
from agentgym.evals.runner import summarise
from agentgym.evals.suite_runner import SuiteResult

Command = Callable[..., Any]
NOBODY = "openai:http://127.0.0.1:9/v1?model=m"
WIKI = ("agentgym/WikiWorld-v0", "num_pages=40", "--episodes", "3")


def test_repeats(run: Command, guess: str) -> None:
    given = ("eval", guess, "highest=3", "max_turns=1", "--policy", "random", "--episodes", "10", "--repeats", "4")
    value = run(*given, "--json").json
    assert (value["num_episodes"], value["num_tasks"]) == (40, 10)
    passes = value["repeats"]["pass_at"]
    assert list(passes) == ["1", "2", "4"]
    assert passes["1"] == pytest.approx(value["success"])
    assert passes["1"] < passes["2"] < passes["4"]
    assert value["repeats"]["pass_all"]["4"] < value["success"]
    seeds = {(row["task_id"], row["seed"]) for row in read_rows(Path(value["run_dir"]))}
    assert len(seeds) == 40
    whole = run("eval", guess, "highest=3", "max_turns=1", "--policy", "random", "--episodes", "40", "--json").json
    rate = value["success"]
    assert value["success_low"] < rate < value["success_high"]
    assert whole["repeats"] == {}


def test_measures_of_fewer_tasks_say_how_many(tmp_path: Path) -> None:
    def row(task: int, status: str, success: bool | None) -> dict[str, Any]:
        numbers = dict.fromkeys(("num_turns", "num_tokens", "seconds", "return"), 1)
        key = {"task_id": f"t{task}", "content_hash": str(task), "seed": 0}
        return {**key, **numbers, "status": status, "success": success, "error": None}

    rows = [row(0, "completed", True), row(0, "completed", False), row(1, "completed", True), row(1, "env_error", None)]
    summary = summarise(rows, suite_or_env="e", policy="p", run_dir=tmp_path)
    assert summary.repeats["num_tasks"] == {"2": 1.0}
    result = SuiteResult(suite="s@1", content_hash="", policy="p", outcome="done", summary=summary)
    assert "| s@1 | p | pass@k | 1: 75.0%, 2: 100.0% of 1 task |" in markdown([result], [])


def test_an_interrupted_evaluation_with_repeats_counts_each_once(run: Command, guess: str) -> None:
    given = ("eval", guess, "highest=3", "--policy", "random", "--episodes", "3", "--repeats", "3", "--json")
    whole = run(*given).json
    rows = Path(whole["run_dir"], "episodes.jsonl")
    for kept in (1, 4, 8):
        rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:kept]))
        again = run("eval", "--resume", whole["run_dir"], "--json").json
        assert {**again, "mean_seconds": 0} == {**whole, "mean_seconds": 0}
        assert len(read_rows(Path(whole["run_dir"]))) == 9


def test_scored_by_name(run: Command) -> None:
    value = run("eval", *WIKI, "--policy", "oracle", "scorer.kind=em", "--repeats", "2", "--json").json
    assert (value["success"], value["mean_score"]) == (1.0, 1.0)
    assert set(value["repeats"]) == {"pass_at", "pass_all", "best_of", "chosen", "majority"}
    row = read_rows(Path(value["run_dir"]))[0]
    assert (row["score"], row["scores"], row["env_success"]) == (1.0, {"em": 1.0}, True)
    assert row["answer"]


def test_rescored_without_playing(run: Command) -> None:
    before = run("eval", *WIKI, "--policy", "oracle", "--json").json
    files = {path.name: path.read_bytes() for path in Path(before["run_dir"]).iterdir()}
    after = run("eval", "--rescore", before["run_dir"], "scorer.kind=regex", "scorer.pattern=never", "--json").json
    assert (before["success"], after["success"], after["mean_return"]) == (1.0, 0.0, before["mean_return"])
    assert after["mean_seconds"] == before["mean_seconds"]
    assert {path.name: path.read_bytes() for path in Path(before["run_dir"]).iterdir()} == files
    groups = read_groups(Path(after["run_dir"]))
    assert [group.trajectories[0].success for group in groups] == [True] * 3  # what the environment said stays
    # the same tasks by different scorers are not compared
    assert "cannot be compared" in run("compare", before["run_dir"], after["run_dir"]).assert_one_line_error()
    again = run("eval", "--rescore", after["run_dir"], "scorer.kind=outcome", "--json").json
    assert again["success"] == 1.0


def test_rescoring_suites(run: Command, tmp_path: Path) -> None:
    suite = tmp_path / "two.toml"
    suite.write_text(
        'name = "two"\nversion = 1\n'
        '[[parts]]\nenv = "agentgym/WikiWorld-v0"\nnum_tasks = 2\nkwargs = { num_pages = 40 }\n'
        'scorers = [{ kind = "f1" }]\nsuccess_at = 0.8\n'
        '[[parts]]\nenv = "agentgym/GuessNumber-v0"\nnum_tasks = 2\n'
    )
    done = run("eval", str(suite), "--policy", "oracle", "--repeats", "2", "--json").json
    (result,) = done["results"]
    assert result["suite"] == "two.times-2@1"
    assert set(result["summary"]["by_type"]) == {"wikiworld-v0", "guessnumber-v0"}
    assert [part["mean_score"] for part in result["parts"]] == [1.0, None]
    again = run("eval", "--rescore", done["run_dir"], "scorer.kind=outcome", "--json").json
    (scored,) = again["results"]
    assert scored["summary"]["success"] == 1.0
    assert scored["content_hash"] != result["content_hash"]
    assert "cannot be compared" in run("compare", done["run_dir"], again["run_dir"]).assert_one_line_error()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--rescore", "nowhere", "scorer.kind=em"), "nowhere is not an evaluation"),
        (("--rescore", "nowhere"), "and nothing else"),
        (("--rescore", "nowhere", "scorer.kind=em", "--episodes", "3"), "and nothing else"),
        (("agentgym/WikiWorld-v0", "--policy", "oracle", "scorer.kind=f2"), "did you mean 'f1'"),
        (("agentgym/WikiWorld-v0", "--policy", "oracle", "scorer.pattern=x"), "name one by scorer.kind"),
    ],
)
def test_bad_input(run: Command, tmp_path: Path, given: tuple[str, ...], message: str) -> None:
    assert message in run("eval", *given).assert_one_line_error()
    assert not (tmp_path / "runs").exists()


def test_a_scorer_that_cannot_score_leaves_nothing(run: Command) -> None:
    before = run("eval", *WIKI, "--policy", "oracle", "--json").json
    assert (
        "contain no number"
        in run("eval", "--rescore", before["run_dir"], "scorer.kind=numeric").assert_one_line_error()
    )
    assert [path.name for path in Path("runs").iterdir()] == [Path(before["run_dir"]).name]


def test_tasks_without_answers_are_refused_before_the_first_episode(run: Command, guess: str) -> None:
    error = run("eval", guess, "--policy", "oracle", "scorer.kind=f1", "--run-dir", "here").assert_one_line_error()
    assert "scorer f1: the tasks have no answers to compare with" in error
    assert not Path("here").exists()


@pytest.mark.parametrize(
    "given",
    [
        ("--policy", "oracle", "scorer.kind=judge", f"scorer.model={NOBODY}"),
        ("--policy", "best:random,attempts=2", "verify.kind=judge", f"verify.model={NOBODY}"),
    ],
)
def test_a_judge_that_cannot_be_reached_is_refused_before_the_first_episode(
    run: Command, guess: str, given: tuple[str, ...]
) -> None:
    error = run("eval", guess, *given).assert_one_line_error()
    assert "the endpoint http://127.0.0.1:9/v1 cannot be reached" in error
    assert not list(Path("runs").glob("*"))


def test_rescoring_asks_first_if_the_judge_can_be_reached(run: Command, guess: str) -> None:
    before = run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json
    judge = ("scorer.kind=judge", f"scorer.model={NOBODY}")
    assert "cannot be reached" in run("eval", "--rescore", before["run_dir"], *judge).assert_one_line_error()


def test_rescoring_without_records_says_which_file_is_missing(run: Command, guess: str) -> None:
    folder = Path(run("eval", guess, "--policy", "random", "--episodes", "2", "--json").json["run_dir"])
    (folder / "episodes.jsonl.gz").unlink()
    said = run("eval", "--rescore", str(folder), "scorer.kind=outcome").assert_one_line_error()
    assert "has no recorded episodes: its episodes.jsonl.gz is missing" in said


def test_a_gate(run: Command, guess: str) -> None:
    for policy in ("oracle", "random"):
        run("eval", guess, "highest=3", "max_turns=1", "--policy", policy, "--episodes", "20")
    oracle, random = "runs/eval-guess-v0-001", "runs/eval-guess-v0-002"
    passed = run("compare", random, oracle, "--min-difference", "0", "--json")
    assert passed.json["passed"] is True
    failed = run("compare", oracle, random, "--min-difference=-0.05", "--json")
    assert failed.code == 1
    assert json.loads(failed.out)["passed"] is False
    told = run("compare", oracle, random, "--min-difference=-0.05").out
    assert "a difference of at least -5.0 pp is not shown" in " ".join(told.split())
    same = run("compare", oracle, oracle)
    (found,) = run("compare", oracle, oracle, "--json").json["suites"]
    assert [round(found[f"difference_{end}"], 3) for end in ("low", "high")] == [-0.137, 0.137]
    assert "can detect a difference of 18.4 percentage points" in " ".join(same.out.split())
    assert run("compare", oracle, oracle, "--min-difference", "-0.14").code == 0
    assert run("compare", oracle, oracle, "--min-difference", "-0.02").code == 1  # 20 tasks show too little


def test_scorers_are_listed(run: Command) -> None:
    names = {row["name"]: row for row in run("list", "--scorers", "--json").json}
    assert {"em", "f1", "numeric", "regex", "judge", "outcome", "partial"} <= set(names)
    assert names["numeric"]["settings"] == ["tolerance", "absolute"]
