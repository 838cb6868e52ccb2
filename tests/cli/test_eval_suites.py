"""agentgym eval SUITE, list --suites and compare: several suites and policies, one table, one JSON value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import EnvError, RunStoppedError
from agentgym.evals.suite_runner import _refused
from agentgym.evals.suites import load_suite
from agentgym.rollout.folder_lock import locked

Command = Callable[..., Any]


@pytest.fixture
def suite_file(guess: str, tmp_path: Path) -> str:
    """A suite of a user's own, of an environment in a file."""
    path = tmp_path / "guesses.toml"
    parts = "".join(
        f'[[parts]]\nenv = "{guess}"\nname = "{n}"\nnum_tasks = {n}\nkwargs = {{highest = {n}}}\n' for n in (3, 9)
    )
    path.write_text(f'name = "guesses"\nversion = 1\n{parts}')
    return str(path)


def test_list(run: Command) -> None:
    rows = run("list", "--suites", "--json").json
    named = {row["name"]: row for row in rows}
    assert {"household-valid", "webshop-500", "code-repair", "code-humaneval", "alfworld-games"} <= set(named)
    assert named["household-valid"]["available"] and named["household-valid"]["num_tasks"] == 200
    assert len(named["household-valid"]["content_hash"]) == 32
    for row in rows:
        assert row["available"] or (row["reason"] and row["mend"])
    assert "household-valid@1" in run("list", "--suites").out


def test_three_suites_two_policies_and_four_repeats_in_one_command(run: Command, guess: str, tmp_path: Path) -> None:
    files = []
    for highest in (2, 3, 4):
        files.append(str(tmp_path / f"to-{highest}.toml"))
        part = f'[[parts]]\nenv = "{guess}"\nnum_tasks = 6\nkwargs = {{highest = {highest}, max_turns = 1}}\n'
        Path(files[-1]).write_text(f'name = "to-{highest}"\nversion = 1\n{part}')
    done = run("eval", *files, "--policy", "random", "--policy", "oracle", "--repeats", "4", "--json")
    folder = Path(done.json["run_dir"])
    assert len(done.json["results"]) == 6
    compared = done.json["comparisons"]
    assert [(one["suite_or_env"], one["policy_a"], one["policy_b"]) for one in compared] == [
        (f"to-{highest}.times-4@1", "random", "oracle") for highest in (2, 3, 4)
    ]
    assert [one["num_pairs"] for one in compared] == [24, 24, 24]
    assert all(one["difference"] > 0 and one["p_value"] < 0.2 for one in compared)
    assert json.loads((folder / "comparisons.json").read_text()) == compared
    table = (folder / "results.md").read_text()
    assert table.count("| oracle | 100.0% |") == 3
    assert table.count("| pass^k |") == 6
    assert f"| to-2.times-4@1 | random | oracle | +{100 * compared[0]['difference']:.1f} pp |" in table
    page = (folder / "report.html").read_text()
    assert "pass@k" in page and "to-4.times-4" in page


def test_several_policies_on_a_suite_of_ones_own(run: Command, suite_file: str) -> None:
    done = run("eval", suite_file, "--policy", "oracle", "--policy", "random", "--json")
    assert done.code == 0
    results = done.json["results"]
    assert [(r["suite"], r["policy"], r["outcome"]) for r in results] == [
        ("guesses@1", "oracle", "done"),
        ("guesses@1", "random", "done"),
    ]
    assert [r["summary"]["num_episodes"] for r in results] == [12, 12]
    assert results[0]["summary"]["success"] == 1.0
    assert len(results[0]["parts"]) == 2
    folder = Path(done.json["run_dir"])
    assert folder == Path("runs/eval-guesses-001")
    assert json.loads((folder / "results.json").read_text()) == results
    assert run("eval", "--resume", str(folder), "--json").json == done.json
    refused = run("eval", "--resume", str(folder), "--policy", "random").assert_one_line_error()
    assert "keeps its own suites" in refused
    text = run("eval", suite_file, "--policy", "oracle").out
    assert "guesses@1" in text and "100.0%" in text


def test_what_cannot_run_is_said_and_the_others_run(
    run: Command, suite_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    done = run("eval", suite_file, "webshop-human-500", "--policy", "oracle", "--json")
    assert done.code == 1, "a suite that was asked for by name"
    first, second = done.json["results"]
    assert (first["outcome"], second["outcome"], second["summary"]) == ("done", "cannot_run", None)
    assert "WEBSHOP_DATA is not set" in second["reason"] and "export WEBSHOP_DATA" in second["mend"]
    text = run("eval", suite_file, "webshop-human-500", "--policy", "oracle")
    assert "cannot run here" in text.out
    assert "to mend it: " in text.out
    assert " 0.0%" not in text.out


def test_a_suite_that_stopped_says_only_what_its_reason_says(suite_file: str) -> None:
    suite = load_suite(suite_file)
    stopped = _refused(suite, "", "oracle", RunStoppedError("3 of 4 episodes failed: see the log"), "stopped")
    assert (stopped.reason, stopped.mend) == ("3 of 4 episodes failed: see the log", "")
    assert _refused(suite, "", "oracle", EnvError("no browser"), "stopped").mend == "agentgym doctor"
    own = replace(suite, parts=(replace(suite.parts[0], env="mine.py:Mine-v0"),))
    broken = EnvError("mine.py:Mine-v0 reset: ConnectionError: no database")
    assert _refused(own, "", "oracle", broken, "cannot_run").mend == "agentgym check mine.py:Mine-v0"


def test_a_misspelt_suite_is_suggested(run: Command) -> None:
    said = run("eval", "babyai-level", "--policy", "oracle").assert_one_line_error()
    assert said.rstrip().endswith("suites with such names: babyai-levels")
    # the environment is there; what is unknown is its argument
    wrong = run("eval", "agentgym/Household-v0", "num_object=3", "--policy", "random").assert_one_line_error()
    assert "did you mean 'num_objects'" in wrong and "suites" not in wrong


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('env = "nowhere.py:Guess-v0"', "no file 'nowhere.py'"),
        ('env = "agentgym/Mase-v0"', "did you mean 'agentgym/Maze-v0'"),
        ('env = "agentgym/Maze-v0"\nsplit = "tets"', "did you mean 'test'"),
        ('env = "agentgym/Maze-v0"\nkwargs = { sise = 3 }', "did you mean 'size'"),
        ('env = "agentgym/Maze-v0"\nkwargs = { size = "big" }', "size"),
        ('env = "agentgym/Maze-v0"\nids = ["tset-1"]', "tset-1"),
    ],
)
def test_a_mistake_in_a_suite_of_ones_own_begins_nothing(run: Command, line: str, told: str) -> None:
    Path("mine.toml").write_text(f'name = "mine"\nversion = 1\nlicence = "CC0-1.0"\n\n[[parts]]\n{line}\n')
    assert told in run("eval", "mine.toml", "--policy", "oracle").assert_one_line_error()
    assert not Path("runs").exists()


def test_two_policies_of_a_comparison_are_named(run: Command, suite_file: str) -> None:
    assert "A: oracle, B: random" in run("eval", suite_file, "--policy", "oracle", "--policy", "random").out


@pytest.mark.slow
def test_all(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command plays everything that comes with the package and names the rest."""
    for name in ("ALFWORLD_DATA", "WEBSHOP_DATA", "AGENTGYM_SHARED_DATA", "EXERCISM_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    done = run("eval", "all", "--policy", "oracle", "--episodes", "1", "--json")
    assert done.code == 0
    by_outcome = {r["suite"].partition(".")[0]: r for r in done.json["results"]}
    assert set(by_outcome) == {row["name"] for row in run("list", "--suites", "--json").json}
    for row in by_outcome.values():
        assert row["outcome"] == "done" or row["mend"], row
        assert row["summary"] is None or row["summary"]["success"] == 1.0, row


def test_comparing(run: Command, suite_file: str, guess: str) -> None:
    folder = run("eval", suite_file, "--policy", "oracle", "--policy", "random", "--json").json["run_dir"]
    a, b = f"{folder}/guesses/random", f"{folder}/guesses/oracle"
    (found,) = run("compare", a, b, "--json").json["suites"]
    assert (found["success_b"], found["num_pairs"], found["policy_a"]) == (1.0, 12, "random")
    assert found["difference"] > 0 and 0 <= found["p_value"] <= 1
    assert "guesses@1" in run("compare", a, b).out
    assert "with several policies; name one of them" in run("compare", folder, folder).assert_one_line_error()
    short = run("eval", suite_file, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"]
    refused = run("compare", b, short).assert_one_line_error()
    assert "12 episodes against 4, 4 of them with the same task and seed" in refused


def test_a_changed_environment_of_ones_own_is_said(run: Command, suite_file: str, guess: str) -> None:
    given = ("eval", suite_file, "--policy", "oracle", "--json")
    first = run(*given).json["run_dir"]
    file = Path(guess.rpartition(":")[0])
    file.write_text(file.read_text() + "\n")
    again = run("eval", "--resume", first, "--json")
    assert f"begun with other versions (own_files.{file}: " in again.err
    file.write_text(file.read_text() + "\n")
    second = run(*given).json["run_dir"]
    for a, b in ((first, second), (f"{first}/guesses/oracle", f"{second}/guesses/oracle")):
        (told,) = run("compare", a, b, "--json").json["made_with"]
        assert told.startswith(f"own_files.{file}: ") and "none" not in told


def test_comparing_environments(run: Command, guess: str) -> None:
    def folder(*options: str) -> str:
        return str(run("eval", guess, "--episodes", "6", *options, "--json").json["run_dir"])

    random, gold, other = (
        folder("--policy", "random"),
        folder("--policy", "oracle"),
        folder("--policy", "oracle", "--seed", "3"),
    )
    (found,) = run("compare", random, gold, "--json").json["suites"]
    assert (found["suite_or_env"], found["num_pairs"], found["success_b"]) == (guess, 6, 1.0)
    assert "0 of them with the same task and seed" in run("compare", gold, other).assert_one_line_error()


def test_bad_input(run: Command, suite_file: str, guess: str) -> None:
    def refusal(*arguments: str) -> str:
        return str(run("eval", *arguments).assert_one_line_error())

    assert "a suite fixes seed" in refusal(suite_file, "--policy", "oracle", "--seed", "3")
    assert "a suite fixes kwargs" in refusal(suite_file, "highest=3", "--policy", "oracle")
    assert "is not a suite" in refusal(suite_file, guess, "--policy", "oracle")
    assert "unknown suite file 'nowhere.toml'" in refusal("nowhere.toml", "--policy", "oracle")
    Path("my_suite.toml").touch()
    assert "did you mean 'my_suite.toml'?" in refusal("mysuite.toml", "--policy", "oracle")
    assert "one environment and one policy" in refusal(guess, "--policy", "oracle", "--policy", "random")
    copy = Path("copy.toml")
    copy.write_text(Path(suite_file).read_text())
    assert "the same name" in refusal(suite_file, str(copy), "--policy", "oracle")
    assert "did you mean 'context.num_turns'" in refusal(guess, "context.num_turn=2", "--policy", "oracle")
    assert not Path("runs").exists()


def test_a_folder_of_another_kind_is_named_with_its_command(run: Command, guess: str, tmp_path: Path) -> None:
    for name, config in (
        ("trained", {"recipe": "tiny", "env": {"id": guess, "kwargs": {}}, "eval": {"kwargs": {}}}),
        ("stopped", {"eval": {"env": guess, "policy": "oracle", "kwargs": {}}}),
        ("other", {}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))

    def refusal(*words: str) -> str:
        return str(run(*words).assert_one_line_error())

    resumed = refusal("eval", "--resume", "trained")
    assert "trained is a training run: agentgym train --resume trained continues it, agentgym eval trained" in resumed
    begin = ("eval", guess, "--policy", "oracle", "--run-dir")
    assert "or resume it: agentgym train --resume trained" in refusal(*begin, "trained")
    assert "or resume it: agentgym eval --resume stopped" in refusal(*begin, "stopped")
    assert refusal(*begin, "other").endswith("choose another folder\n")
    assert "resume it: agentgym train --resume trained, or evaluate its model" in refusal("compare", "trained", "other")
    assert "resume it: agentgym eval --resume stopped" in refusal("compare", "stopped", "other")
    assert "name the folder of one, or of a training run" in refusal("compare", "other", "trained")


def test_two_training_runs_are_compared_at_each_moment(run: Command, guess: str, tmp_path: Path) -> None:
    for name, seed, policies in (("a", 1, ("random", "random")), ("b", 2, ("random", "oracle"))):
        folder = tmp_path / name
        for moment, policy in zip(("before", "after"), policies, strict=True):
            options = ("--policy", policy, "--episodes", "4", "--run-dir", str(folder / "eval" / moment))
            assert run("eval", guess, *options).code == 0
        config = {"recipe": "tiny", "seed": seed, "env": {"id": guess, "kwargs": {}}, "eval": {"kwargs": {}}}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "metrics.jsonl").write_text("")
    value = run("compare", "a", "b", "--json").json
    assert [row["suite_or_env"] for row in value["suites"]] == [f"{guess}, before RL", f"{guess}, after RL"]
    before, after = value["suites"]
    assert before["difference"] == 0 and after["success_b"] == 1.0
    assert value["settings"] == {"seed": [1, 2]}
    shown = run("compare", "a", "b").out
    assert "tiny (b)" in shown and "seed" in shown
    run("eval", guess, "--policy", "oracle", "--episodes", "4", "--run-dir", "gold")
    (one,) = run("compare", "a", "gold", "--json").json["suites"]
    assert one["success_b"] == 1.0 and one["policy_a"] == "tiny (a)", "an evaluation is compared with the last one"
    value = run("compare", "a", "gold", "--json").json
    assert value["settings"] == {} and value["num_incomparable_settings"] > 10
    assert "only a training run or only an evaluation has are not shown" in run("compare", "a", "gold").out
    moments = run("compare", "b/eval/before", "b/eval/after").out
    assert "A: b/eval/before, policy tiny (b)\nB: b/eval/after, policy tiny (b)\n" in moments
    told = " ".join(moments.split())
    assert re.search(r"can detect a difference of [\d.]+ percentage points \(pp\) with a probability of 80 %", told)
    assert "+50.0 pp" in told
    run("eval", guess, "--policy", "oracle", "--episodes", "4", "--seed", "7", "--run-dir", "other")
    refused = run("compare", "a", "other").assert_one_line_error().rstrip()
    assert refused.endswith("agentgym eval a --policy random (or another policy) plays the tasks of the training run")
    assert f"{guess}, after RL against" not in refused, "labels are no difference in content"
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.jsonl").write_text("")
    (tmp_path / "empty" / "config.json").write_text((tmp_path / "a" / "config.json").read_text())
    assert "no finished evaluation yet; resume it" in run("compare", "empty", "b").assert_one_line_error()
    with locked(tmp_path / "empty"):
        told = run("compare", "empty", "b").assert_one_line_error()
    assert re.search(r"no finished evaluation yet; process \d+ on \S+ is training it", told)


@pytest.mark.parametrize(
    ("suite", "variable", "file"),
    [
        ("math-500", "AGENTGYM_MATH_DATA", "math-500.jsonl"),
        ("aime-2024", "AGENTGYM_MATH_DATA", "aime-2024.parquet"),
        ("tau2-airline", "AGENTGYM_TAU2_DOMAINS", "airline"),
        ("tau2-telecom", "AGENTGYM_TAU2_DOMAINS", "telecom"),
        ("gaia", "GAIA_DATA", "2023"),
        ("agentbench-db", "AGENTBENCH_DATA", "dbbench"),
        ("agentbench-household", "ALFWORLD_DATA", "alfworld-download"),
        ("webarena", "WEBARENA_DATA", "test.raw.json"),
        ("swe-bench-verified", "SWE_BENCH_TASKS", "agentgym convert"),
    ],
)
def test_a_suite_without_its_files_says_in_one_line_which_goes_where(
    run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, suite: str, variable: str, file: str
) -> None:
    monkeypatch.delenv(variable, raising=False)
    said = run("eval", suite, "--policy", "idle").assert_one_line_error()
    assert variable in said and file in said
    monkeypatch.setenv(variable, str(tmp_path / "nowhere"))
    assert file in run("eval", suite, "--policy", "idle").assert_one_line_error()
    assert not Path("runs").exists(), "nothing was begun"
