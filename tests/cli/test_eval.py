"""agentgym eval: its JSON, its folder, going on with a stopped one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from testkit import TESTKIT

from agentgym.rollout.journal import read

Command = Callable[..., Any]

FIELDS = {
    "suite_or_env", "policy", "num_episodes", "num_failed", "success", "success_low", "success_high", "mean_return",
    "mean_turns", "mean_tokens", "statuses", "run_dir", "num_tasks", "mean_score", "mean_prompt_tokens",
    "mean_invalid_turns", "mean_tool_errors", "mean_seconds", "repeats", "by_type", "mean_attempts", "mean_cost",
    "cost", "mean_truncated_completions", "models", "return_low", "return_high", "spent", "num_unpriced",
    "counts_tokens",
}  # fmt: skip


def test_json(run: Command, guess: str) -> None:
    value = run("eval", guess, "--policy", "oracle", "--episodes", "5", "--json").json
    assert set(value) == FIELDS
    assert (value["suite_or_env"], value["policy"], value["num_episodes"]) == ("Guess-v0", "oracle", 5)
    assert (value["success"], value["statuses"]) == (1.0, {"completed": 5})
    assert value["run_dir"] == "runs/eval-guess-v0-001"
    assert json.loads((Path(value["run_dir"]) / "summary.json").read_text()) == value


def test_text_and_the_next_folder(run: Command, guess: str) -> None:
    run("eval", guess, "--policy", "random", "--episodes", "4")
    done = run("eval", guess, "highest=1000", "--policy", "random", "--episodes", "4")
    assert "0.0%" in done.out
    assert "truncated_turns 4" in done.out
    assert "agentgym view runs/eval-guess-v0-002" in done.out


def test_the_interval_of_the_return_counts_tasks(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "even.py"
    file.write_text(LEAVES.replace("sys.exit(0)", "self.finish(0.0); return 'no'"))
    # six tasks, of which three pay: 16 episodes of each tell no more than one
    once = run("eval", str(file), "--policy", "random", "--episodes", "6").out
    often = run("eval", str(file), "--policy", "random", "--episodes", "6", "--repeats", "16").out
    assert [
        line.split(maxsplit=1)[1].strip() for out in (once, often) for line in out.splitlines() if "return" in line
    ] == ["0.5  95 % interval 0.167 to 0.833"] * 2
    paid = run("eval", str(file), "at=start", "--policy", "random", "--episodes", "1").out
    assert "1 in every task" in paid


def test_settings_of_a_model_have_no_effect_on_a_script(run: Command, guess: str) -> None:
    asked = ("eval", guess, "--episodes", "2", "--max-new-tokens", "5", "chat.codec=json", "--policy")
    told = "note: without effect, since random samples no tokens: max_new_tokens, chat\n"
    assert run(*asked, "random").err.startswith(told)
    assert "without effect" not in run("eval", guess, "--episodes", "2", "--policy", "random").err


def test_more_episodes_than_tasks(run: Command, guess: str) -> None:
    done = run("eval", guess, "--policy", "oracle", "--episodes", "1001", "--json")
    assert done.json["num_episodes"] == 1000
    assert "has 1000 tasks" in done.err


def test_a_split_without_tasks_is_named(run: Command, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    done = run("eval", "agentgym/Math-v0", "problems=train.jsonl", "rule=math", "--policy", "oracle")
    assert "Math-v0 has no tasks in split 'test'; it has train: 1" in done.assert_one_line_error()


def test_resume_takes_the_saved_plan(run: Command, guess: str) -> None:
    whole = run("eval", guess, "highest=3", "--policy", "random", "--episodes", "6", "--seed", "4", "--json").json
    rows = Path(whole["run_dir"], "episodes.jsonl")
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:2]))
    assert run("eval", "--resume", whole["run_dir"], "--json").json == whole | {"mean_seconds": ANY}
    refused = run("eval", "--resume", whole["run_dir"], "--seed", "5").assert_one_line_error()
    assert "begun with seed=4, not 5" in refused
    again = run("eval", guess, "highest=3", "--resume", whole["run_dir"], "--json").json
    assert again == whole | {"mean_seconds": ANY}


def test_lost_episodes_fail_the_command_with_the_reason(run: Command, guess_file: Path) -> None:
    reference = f"{guess_file}:Broken-v0"
    four = run("eval", reference, "--policy", "oracle", "--episodes", "4")
    assert "the world is broken" in four.assert_one_line_error(1)
    note, error = run("eval", reference, "--policy", "oracle").err.splitlines()
    assert note.startswith("note: the last 8 episodes failed") and error.startswith("error: ")


LEAVES = """
import sys
from agentgym import ToolEnv, register, tool

class Leaves(ToolEnv):
    'Exits the interpreter in some tasks.'
    def __init__(self, *, at="go", **kwargs):
        super().__init__(**kwargs)
        self.at = at

    def start(self, task):
        if self.at == "start" and task.seed % 2:
            sys.exit(0)
        return "Go."

    @tool
    def go(self) -> str:
        'Go.'
        if self.at == "go" and self.task.seed % 2:
            sys.exit(0)
        self.finish(1.0)
        return "gone"

    def state_key(self):
        if self.at == "key" and self.task.seed % 2:
            sys.exit(0)
        return "here"

register("Leaves-v0", Leaves, max_turns=2)
"""


def test_the_result_names_the_most_frequent_error_of_failed_episodes(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "leaves.py"
    file.write_text(LEAVES)
    shown = run("eval", str(file), "--policy", "random", "--episodes", "4").out
    assert "most often (2x)" in shown and "SystemExit: 0" in shown


@pytest.mark.parametrize("at", ["start", "go", "key"])
def test_an_environment_that_exits_fails_its_episode_alone(run: Command, tmp_path: Path, at: str) -> None:
    file = tmp_path / "leaves.py"
    file.write_text(LEAVES)
    value = run("eval", str(file), f"at={at}", "--policy", "random", "--episodes", "4", "--json").json
    assert (value["success"], value["num_failed"]) == (1.0, 2)
    rows = [json.loads(line) for line in Path(value["run_dir"], "episodes.jsonl").read_text().splitlines()]
    assert {"SystemExit: 0" in str(row["error"]) for row in rows if row["success"] is None} == {True}
    checked = run("check", str(file), f"at={at}")
    assert (checked.code, "SystemExit: 0" in checked.out) == (1, True)
    file.write_text("raise SystemExit(0)")
    assert "SystemExit: 0" in run("check", str(file)).assert_one_line_error(1)


def test_bad_input(run: Command, guess: str, guess_file: Path, tmp_path: Path) -> None:
    assert "did you mean 'oracle'?" in run("eval", guess, "--policy", "oracel").assert_one_line_error()
    assert "name an environment and a policy" in run("eval", guess).assert_one_line_error()
    assert not (tmp_path / "runs").exists()
    no_oracle = run("eval", f"{guess_file}:NoOracle-v0", "--policy", "oracle")
    assert "has no oracle" in no_oracle.assert_one_line_error()
    (tmp_path / "plain").mkdir()
    assert "not an evaluation" in run("eval", "--resume", "plain").assert_one_line_error()
    assert "plain is not a training run; name an env" in run("eval", "plain").assert_one_line_error()
    (tmp_path / "plain" / "metrics.jsonl").touch()
    assert "plain is not a training run: it has no config.json" in run("compare", "plain", "x").assert_one_line_error()
    (tmp_path / "plain" / "config.json").write_text("{")
    assert "plain/config.json is not JSON" in run("eval", "--resume", "plain").assert_one_line_error()
    assert "plain/config.json is not JSON" in run("compare", "plain", "x").assert_one_line_error()
    taken = run("eval", guess, "--policy", "oracle", "--run-dir", "plain")
    assert "exists and is not empty" in taken.assert_one_line_error()
    assert "did you mean 'test'?" in run("eval", guess, "--policy", "oracle", "--split", "tset").assert_one_line_error()
    assert run("eval", guess, "--policy", "oracle", "--episodes", "0").code == 2


def test_a_file_with_one_environment_is_that_environment(run: Command, guess: str) -> None:
    of_both = Path(guess.partition(":")[0]).read_text()
    Path("one.py").write_text(of_both.partition("class NoOracle")[0] + 'register("Guess-v0", Guess, max_turns=4)')
    by_file, by_id = (
        run("eval", reference, "--policy", "random", "--episodes", "3", "--json").json["run_dir"]
        for reference in ("one.py", "one.py:Guess-v0")
    )
    assert json.loads(Path(by_file, "config.json").read_text())["eval"]["env"] == "one.py:Guess-v0"
    compared = run("compare", by_file, by_id)
    assert compared.code == 0
    assert "+0.000" in compared.out
    assert "(+0.000 to" not in compared.out  # all returns are equal, so their bootstrap interval says nothing
    run("eval", "one.py", "--resume", by_file, "--json")


def test_settings_of_another_version_are_named(run: Command, guess: str) -> None:
    folder = Path(run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"eval": config["eval"] | {"pace": 2}}))
    said = run("eval", "--resume", str(folder), "--trust").assert_one_line_error()
    assert "unknown key 'pace'" in said
    assert "another version of agentgym may have written it" in said


def test_corrupt_episodes(run: Command, guess: str) -> None:
    folder = run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"]
    Path(folder, "episodes.jsonl").write_text("not json\n{}\n")
    assert "line 1: not JSON" in run("eval", "--resume", folder).assert_one_line_error()


def test_a_game_is_evaluated_against_another_policy(run: Command) -> None:
    game = ("eval", "agentgym/TicTacToe-v0", "opponent=self", "--policy", "oracle", "--episodes", "6")
    value = run(*game, "--opponent", "random", "--json").json
    assert (value["success"], value["num_episodes"]) == (1.0, 6)
    assert value["mean_return"] > 0
    saved = json.loads((Path(value["run_dir"]) / "config.json").read_text())
    assert saved["eval"]["opponent"] == "random"
    assert "evaluate against an opponent" in run(*game).assert_one_line_error()


def test_another_policy_plays_a_sub_agent(run: Command) -> None:
    asked = ("eval", f"{TESTKIT / 'asking_env.py'}:Manager-v0", "--policy", "oracle", "--episodes", "8")
    value = run(*asked, "roles.clerk=random", "--json").json
    assert value["success"] < 1.0, "the clerk hands over any number"
    assert json.loads((Path(value["run_dir"]) / "config.json").read_text())["eval"]["roles"] == {"clerk": "random"}
    assert run(*asked, "roles.clerk=oracle", "--json").json["success"] == 1.0
    for given, said in (
        ("roles.clark=oracle", "has no sub-agent or player of that name; it has clerk"),
        ("roles.clerk=orcle", "unknown policy 'orcle'"),
        ("roles.clerk=3", "roles.clerk names a policy"),
    ):
        assert said in run(*asked, given).assert_one_line_error()
    both = ("roles.player_1=random", "roles.player_2=random")
    game = ("eval", "agentgym/TicTacToe-v0", "opponent=self", "--policy", "oracle", *both)
    assert "leave one to the policy" in run(*game).assert_one_line_error()
    assert run(*game[:-1], "--episodes", "4", "--json").json["num_episodes"] == 4


def test_the_journal_says_what_a_result_was_made_with(run: Command, guess: str) -> None:
    given = ("eval", guess, "--policy", "oracle", "--episodes", "2", "--json")
    first, second = Path(run(*given).json["run_dir"]), Path(run(*given).json["run_dir"])
    (line,) = read(first)
    assert (line["env"], line["policy"], len(line["tasks"])) == ("Guess-v0", {"name": "oracle"}, 32)
    assert run("compare", str(first), str(second), "--json").json["made_with"] == []
    old = {**line, "packages": {**line["packages"], "numpy": "0.1"}}
    (second / "journal.jsonl").write_text(json.dumps(old) + "\n")
    assert "made with other packages.numpy" in run("compare", str(first), str(second)).out
    again = run("eval", "--resume", str(second), "--json")
    assert "begun with other versions (packages.numpy: 0.1," in again.err
    assert len(read(second)) == 2
    file = Path(guess.rpartition(":")[0])
    file.write_text(file.read_text() + "\n")
    (told,) = run("compare", str(first), run(*given).json["run_dir"], "--json").json["made_with"]
    assert told.startswith(f"own_files.{file}: ") and "none" not in told
