"""Everything given at the start of an evaluation is kept: for other folders, for resuming, exporting and rescoring."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_openai import FakeOpenAI, completion

from agentgym.cli.eval import eval_
from agentgym.evals.episodes import read_rows

Command = Callable[..., Any]
OPTIONS = {
    "episodes": 3, "repeats": 2, "seed": 5, "split": "train", "temperature": 0.5, "max_new_tokens": 9,
    "max_thinking_tokens": 0, "max_context_tokens": 0, "num_envs": 3, "max_minutes": 50.0, "max_tokens": 90_000,
    "max_cost": 8.0, "prices": "1,2",
}  # fmt: skip
"""A value of each option that changes load, money or results."""
OTHERS = {"targets", "policy", "codec", "harness", "opponent", "resume", "rescore", "run_dir", "trust", "as_json"}
"""Options that name what is played or the command, and those that are part of the plan's groups."""


def test_every_option_of_load_money_and_results_is_kept(run: Command, guess: str) -> None:
    assert set(inspect.signature(eval_).parameters) == set(OPTIONS) | OTHERS, "sort a new option into one of the two"
    server = FakeOpenAI(
        lambda body: completion(None, ("guess", '{"number": 1}'), prompt_tokens=10, completion_tokens=2)
    )
    limits = "requests_per_minute=60000&max_requests=2"
    given = [word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value)) if value]
    policy = f"openai:{server.url}?model=only&{limits}"
    found = run("eval", guess, "highest=3", "--policy", policy, *given, "--run-dir", "kept", "--json").json
    assert found["num_episodes"] == 6 and server.most_running <= 2

    def saved() -> dict[str, Any]:
        names = ("config.json", "effort.json", "prices.json")
        return {name: json.loads(Path("kept", name).read_text()) for name in names}

    before = saved()
    kept = before["config.json"]["eval"] | before["effort.json"] | {"prices": "1,2"}
    assert {name: kept[name] for name in OPTIONS} == OPTIONS and limits in kept["policy"]
    assert before["prices.json"]["*"] == {"input": 1.0, "output": 2.0, "cached_input": None}
    rows = Path("kept", "episodes.jsonl")
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[2:]))
    again = run("eval", "--resume", "kept", "--json").json
    assert again["num_episodes"] == 6 and again["cost"] is not None and saved() == before
    server.close()


def test_limits_that_are_given_again_replace_those_kept(run: Command, guess: str) -> None:
    run("eval", guess, "--policy", "oracle", "--episodes", "2", "--num-envs", "8", "--run-dir", "kept")
    run("eval", "--resume", "kept")
    assert json.loads(Path("kept/effort.json").read_text()) == {"num_envs": 8}
    run("eval", "--resume", "kept", "--num-envs", "2")
    assert json.loads(Path("kept/effort.json").read_text()) == {"num_envs": 2}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Return a function that moves the run to another folder, deletes the files beside it, and goes there."""

    def go() -> Path:
        there = tmp_path / "there"
        there.mkdir()
        shutil.move("kept", there / "kept")
        for file in Path().glob("*.py"):
            file.unlink()
        os.chdir(there)
        return Path("kept")

    monkeypatch.chdir(tmp_path)
    return go


def test_a_run_with_a_file_goes_on_anywhere(run: Command, guess: str, elsewhere: Callable[[], Path]) -> None:
    shutil.copy(guess.partition(":")[0], "world.py")
    run("eval", "world.py:Guess-v0", "highest=3", "--policy", "random", "--episodes", "6", "--run-dir", "kept")
    kept = elsewhere()
    lines = (kept / "episodes.jsonl").read_text().splitlines(keepends=True)
    (kept / "episodes.jsonl").write_text("".join(lines[1:]))
    assert run("eval", "--resume", "kept", "--json").json["num_episodes"] == 6
    assert run("export", "kept", "-o", "chats.jsonl", "--json").json["num_episodes"] == 6
    (copy,) = (kept / "own_files").iterdir()
    copy.write_text(copy.read_text() + "\n# changed\n")
    assert "was changed" in run("eval", "--resume", "kept").assert_one_line_error()


def test_suites_of_files_are_exported_whole(run: Command, guess: str, elsewhere: Callable[[], Path]) -> None:
    shutil.copy(guess.partition(":")[0], "world.py")
    parts = "".join(f'[[parts]]\nenv = "world.py:Guess-v0"\nname = "p{n}"\nnum_tasks = {n}\n' for n in (1, 2, 3))
    Path("mine.toml").write_text(f'name = "mine"\nversion = 1\n{parts}')
    run("eval", "mine.toml", "--policy", "oracle", "--policy", "random", "--run-dir", "kept")
    elsewhere()
    several = run("export", "kept", "-o", "all.jsonl").assert_one_line_error()
    assert "mine/oracle, mine/random" in several
    named = run("export", "kept", "--evaluation", "mine/oracle", "-o", "one.jsonl", "--json").json
    alone = run("export", "kept/mine/random", "-o", "alone.jsonl", "--json").json
    part = run("export", "kept", "--evaluation", "mine/random/p2", "-o", "part.jsonl", "--json").json
    assert (named["num_episodes"], alone["num_episodes"], part["num_episodes"]) == (6, 6, 2)


def test_a_rescored_suite_has_its_tables(run: Command, guess: str, tmp_path: Path) -> None:
    Path("mine.toml").write_text(f'name = "mine"\nversion = 1\n[[parts]]\nenv = "{guess}"\nnum_tasks = 4\n')
    run("eval", "mine.toml", "--policy", "oracle", "--policy", "random", "--run-dir", "first")
    found = run("eval", "--rescore", "first", "scorer.kind=outcome", "--run-dir", "second", "--json").json
    assert len(found["comparisons"]) == 1
    for name in ("results.json", "results.md", "comparisons.json", "report.html"):
        assert Path("second", name).is_file(), name
    assert read_rows(next(Path("second").glob("*/oracle")))


def test_scorers_may_have_defaults_and_are_named_in_comparisons(run: Command, guess: str) -> None:
    Path("mine.py").write_text(
        "from agentgym.scoring.component import scorer\n\n\n"
        "@scorer('near')\ndef near(trajectory, least: float = 0.5) -> float:\n"
        "    return float((trajectory.reward or 0.0) >= least)\n"
    )
    run("eval", guess, "--policy", "oracle", "--episodes", "3", "--run-dir", "one")
    scored = run("eval", "--rescore", "one", "scorer.kind=mine.py:near", "--run-dir", "two", "--json").json
    assert scored["success"] == 1.0
    told = run("compare", "one", "two").assert_one_line_error()
    assert "success by the environment's own word against success by" in told and "near" in told
    wrong = run("eval", guess, "--policy", "oracle", "sclorer.kind=em").assert_one_line_error()
    assert "did you mean 'scorer'" in wrong.lower() or "scorer" in wrong
