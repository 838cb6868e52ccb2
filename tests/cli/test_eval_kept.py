"""Everything given at the start of an evaluation is kept: for other folders, for resuming, exporting and rescoring."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
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
OTHERS = {
    "targets",
    "policy",
    "role",
    "codec",
    "harness",
    "opponent",
    "resume",
    "rescore",
    "run_dir",
    "trust",
    "as_json",
}
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


def test_what_is_given_again_to_resume_is_compared_or_refused(run: Command, guess: str) -> None:
    asked = ("eval", guess, "highest=3", "--policy", "oracle", "scorer.kind=outcome")
    assert run(*asked, "--episodes", "2", "--run-dir", "kept").code == 0
    assert run(*asked, "--resume", "kept").code == 0, "the same options"
    assert "was begun with scoring=" in run("eval", "--resume", "kept", "scorer.kind=partial").assert_one_line_error()
    for idle in (("--run-dir", "other"), ("--rescore", "kept", "scorer.kind=outcome")):
        told = run("eval", "--resume", "kept", *idle).assert_one_line_error()
        assert f"leave {idle[0]} out" in told and not Path("other").exists()
    for idle in (("--num-envs", "2"), ("--max-minutes", "1"), ("--temperature", "0")):
        told = run("eval", "--rescore", "kept", "scorer.kind=outcome", *idle).assert_one_line_error()
        assert "--prices and --run-dir, and nothing else" in told


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
    (copy,) = (kept / "own_files").rglob("*.py")
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
    before = sorted(Path("second").rglob("episodes.jsonl"))
    again = run("eval", "--resume", "second", "--json").json
    assert again["results"] == found["results"] and sorted(Path("second").rglob("episodes.jsonl")) == before


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
    assert "did you mean 'scorer'" in wrong


WORLD = '''
from pathlib import Path

import words_of_it
from agentgym import Task, ToolEnv, register, tool

HINT = (Path(__file__).parent / "hint.txt").read_text()


class Door(ToolEnv):
    """A door with a word."""

    max_turns = 3

    def start(self, task: Task) -> str:
        return HINT

    @tool
    def say(self, word: str) -> str:
        """Say a word."""
        self.finish(1.0 if word == words_of_it.WORD else 0.0)
        return "Yes."

    def oracle(self):
        return self.parse_action(f"say: {words_of_it.WORD}")


register("Door-v0", Door)
'''


def write_world(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "world.py").write_text(WORLD)
    (folder / "words_of_it.py").write_text("from words_inside import deep\n\nWORD = deep.WORD\n")
    (folder / "words_inside").mkdir()
    (folder / "words_inside" / "__init__.py").write_text("")
    (folder / "words_inside" / "deep.py").write_text("WORD = 'mellon'\n")
    (folder / "hint.txt").write_text("Speak, friend.")


def agentgym(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, since modules stay imported in this one."""
    command = [str(Path(sys.executable).with_name("agentgym")), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_training_run_with_a_file_goes_on_anywhere(tmp_path: Path, warm_agentgym: Any) -> None:
    """Its copy has the modules that the file imports, and the data beside it; no bytecode is written there."""
    write_world(tmp_path / "here")
    quick = ["model.num_text_episodes=2", "sft.num_demos=2", "groups_per_step=1", "group.group_size=2"]
    more = ["num_steps=1", "eval.num_episodes=1", "model.hidden_size=16", "model.num_layers=1"]
    done = warm_agentgym(
        "train", "tiny", "env.id=world.py:Door-v0", "--run-dir", "kept", *quick, *more, cwd=tmp_path / "here"
    )
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "here").rglob("__pycache__"))
    there = tmp_path / "there"
    there.mkdir()
    shutil.move(tmp_path / "here" / "kept", there / "kept")
    shutil.rmtree(tmp_path / "here")
    names = sorted(path.name for path in (there / "kept" / "own_files").rglob("*") if path.is_file())
    assert names[1:] == ["__init__.py", "deep.py", "hint.txt", "words_of_it.py"] and names[0].endswith("-world.py")
    resumed = warm_agentgym("train", "--resume", "kept", "num_steps=2", cwd=there)
    assert resumed.returncode == 0, resumed.stderr
    assert "changed since this run" not in resumed.stdout + resumed.stderr
    exported = warm_agentgym("export", "kept", "-o", "chats.jsonl", cwd=there)
    assert exported.returncode == 0, exported.stderr
    deep = next((there / "kept" / "own_files").rglob("deep.py"))
    deep.write_text("WORD = 'friend'\n")
    changed = warm_agentgym("train", "--resume", "kept", "num_steps=3", cwd=there)
    assert (
        changed.returncode == 2
        and "deep.py, the copy of words_inside/deep.py, is missing or was changed" in changed.stderr
    )


def test_a_module_beside_a_file_is_that_of_its_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_world(tmp_path / name)
    both = '[[parts]]\nenv = "one/world.py:Door-v0"\nname = "a"\nnum_tasks = 1\n'
    both += '[[parts]]\nenv = "two/world.py:Door-v0"\nname = "b"\nnum_tasks = 1\n'
    (tmp_path / "both.toml").write_text(f'name = "both"\nversion = 1\n{both}')
    done = agentgym("eval", "both.toml", "--policy", "oracle", folder=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "which has the same module name; rename one of them" in " ".join(done.stderr.split())


def test_a_scorer_that_nothing_can_call_blocks_no_other(run: Command, guess: str) -> None:
    Path("mine.py").write_text(
        "from agentgym.scoring.component import scorer\n\n\n"
        "@scorer('lost')\ndef lost(trajectory, weather) -> float:\n    return 0.0\n\n\n"
        "@scorer('sound')\ndef sound(trajectory) -> float:\n    return 0.25\n"
    )
    asked = ("eval", guess, "--policy", "oracle", "--episodes", "2")
    assert run(*asked, "scorer.kind=mine.py:sound", "--json").json["mean_score"] == 0.25
    told = run(*asked, "scorer.kind=mine.py:lost").assert_one_line_error()
    assert "scorer 'lost' takes weather, which nothing fills" in told
    assert "registers no scorer 'none'" in run(*asked, "scorer.kind=mine.py:none").assert_one_line_error()
