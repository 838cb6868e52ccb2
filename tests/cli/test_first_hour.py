"""What a newcomer meets in the first hour, by command."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_openai import FakeOpenAI, completion

from agentgym.api.run_settings import run_settings
from agentgym.registry import make, turn_limit
from agentgym.rollout.context import CONTEXT_FILE
from agentgym.rollout.record import read_json_lines
from agentgym.rollout.request import EpisodeLimits

Command = Callable[..., Any]

NAN = '''
from agentgym import ToolEnv, register, tool


class Nan(ToolEnv):
    """Awards a number that is none."""

    def start(self, task):
        return "Press."

    @tool
    def press(self) -> str:
        """Press the button."""
        self.award(float(VALUE), "score")
        return "Pressed."


register("Nan-v0", Nan, max_turns=2)
'''


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_reward_that_is_not_finite_fails_with_its_turn(run: Command, tmp_path: Path, value: str) -> None:
    (tmp_path / "nan.py").write_text(NAN.replace("VALUE", repr(value)))
    error = run("eval", "nan.py:Nan-v0", "--policy", "random", "--episodes", "2").assert_one_line_error(1)
    assert f"Nan-v0 turn 1 (press): the reward part 'score' is {value}, expected a finite number" in error


SIZES = (
    'model={"hidden_size": 32, "num_layers": 1, "head_dim": 16, "vocab_size": 320, "max_context_tokens": 320, '
    '"tools_style": "compact"}',
    "sft.num_demos=64", "sft.batch_size=16", "group.group_size=4", "groups_per_step=2", "sampling.max_new_tokens=12",
)  # fmt: skip
SMALL = (
    *SIZES, "env.kwargs.highest=3", "eval.num_episodes=20", "eval.split=valid", "seed=3",
)  # fmt: skip


@pytest.fixture
def trained(run: Command, guess: str) -> Any:
    """The result of a short run in ``runs/mine``, on tasks, with settings and with a seed of its own."""
    return run("train", "tiny", f"env.id={guess}", *SMALL, "num_steps=2", "--run-dir", "runs/mine", "--json").json


def test_eval_of_a_run_is_the_runs_own_evaluation(run: Command, guess: str, trained: Any) -> None:
    alone = run("eval", "runs/mine", "--json")
    assert "evaluating as runs/mine did\n" in alone.err
    assert (alone.json["success"], alone.json["num_episodes"]) == (trained["success_after"], 20)
    for policy in ("runs/mine", "runs/mine/model"):
        by_policy = run("eval", guess, "--policy", policy, "--json").json
        apart = {"policy": "", "run_dir": "", "mean_seconds": 0}
        assert {**by_policy, **apart} == {**alone.json, **apart}


@pytest.mark.usefixtures("trained")
def test_eval_says_in_what_it_differs_from_the_run(run: Command, guess: str, guess_file: Path) -> None:
    changed = run("eval", guess, "highest=5", "--policy", "runs/mine", "--episodes", "2", "--max-new-tokens", "8")
    assert (
        "except for episodes=2 (20 in the run), max_new_tokens=8 (12 in the run), highest=5 (3 in the run)"
        in changed.err
    )
    oracle = run("eval", "runs/mine", "--policy", "oracle", "--json")
    assert "except for policy='oracle' ('runs/mine' in the run)\n" in oracle.err
    assert (oracle.json["success"], oracle.json["num_episodes"]) == (1.0, 20)
    other = run("eval", f"{guess_file}:NoOracle-v0", "--policy", "runs/mine", "--episodes", "2")
    assert f"runs/mine was trained on {guess}; from it: temperature=1.0, max_new_tokens=12" in other.err


def test_another_model_is_evaluated_with_the_runs_rendering(run: Command, trained: Any) -> None:
    base = Path(shutil.copytree("runs/mine/model", "base"))
    (base / "agentgym_chat.json").unlink()  # the same weights, of a folder that says nothing of its rendering
    found = run("eval", "runs/mine", "--policy", "base", "--run-dir", "runs/base", "--json")
    assert "except for policy='base' ('runs/mine' in the run)\n" in found.err
    assert found.json["success"] == trained["success_after"]
    run("eval", "runs/mine", "--run-dir", "runs/own")
    assert list(run("compare", "runs/base", "runs/own", "--json").json["settings"]) == ["eval.policy"]
    changed = run("eval", "runs/mine", "--policy", "base", "chat.tools_style=schema", "--episodes", "2").err
    assert "chat.tools_style='schema' ('compact' in the run)" in changed


@pytest.mark.usefixtures("trained")
def test_an_endpoint_is_evaluated_without_what_its_server_decides(run: Command) -> None:
    server = FakeOpenAI(lambda body: completion(None, ("guess", '{"number": 1}'), prompt_tokens=9))
    said = run("eval", "runs/mine", "--policy", f"openai:{server.url}", "--episodes", "2").err
    server.close()
    assert (
        "max_context_tokens (the default, not 320)" in said and "chat.tools_style (the default, not 'compact')" in said
    )


@pytest.mark.usefixtures("trained")
def test_moments_of_a_run_are_compared_by_their_folders(run: Command) -> None:
    value = run("compare", "runs/mine/eval/before", "runs/mine/eval/after", "--json").json
    assert (value["suites"][0]["num_pairs"], value["settings"]) == (20, {})
    run("eval", "runs/mine", "highest=4", "--episodes", "8", "--run-dir", "runs/other")
    refused = run("compare", "runs/mine/eval/after", "runs/other").assert_one_line_error()
    assert "highest=3 against 4; 20 episodes against 8" in refused


def test_a_run_that_trained_nothing_says_why(run: Command, guess: str) -> None:
    done = run("train", "tiny", f"env.id={guess}", *SMALL, "sft.num_demos=0", "num_steps=1", "--run-dir", "runs/mine")
    assert "0 of 1 steps trained: 100% of turns are invalid; give demonstrations (sft.num_demos" in " ".join(
        done.err.split()
    )
    assert "loss –  entropy –" in done.err
    assert "trained in 0 of 1 steps" in done.out
    (row,) = (row for row in read_json_lines(Path("runs/mine/metrics.jsonl")) if row["phase"] == "rl")
    assert (row["loss"], row["entropy"], row["grad_norm"], row["trained_tokens"]) == (None, None, None, 0.0)


def test_a_worked_example_without_an_oracle(run: Command, guess_file: Path) -> None:
    tiny = ("train", "tiny", f"env.id={guess_file}:NoOracle-v0", *SMALL, "num_steps=0", "context.example_turns=2")
    assert "has no oracle; the worked example in prompts has random actions" in run(*tiny, "--run-dir", "runs/one").err
    shown = json.loads(Path("runs/one/model", CONTEXT_FILE).read_text())["examples"]
    assert [message["role"] for message in shown] == ["user", "assistant", "tool", "assistant"]
    assert run("eval", "runs/one", "--episodes", "2", "--json").json["num_episodes"] == 2
    refused = run("eval", f"{guess_file}:NoOracle-v0", "context.example_turns=1", "--policy", "runs/one/model")
    assert refused.code == 2 and "has none: write oracle()" in refused.err
    settings = run_settings("runs/one")
    assert settings is not None
    of_endpoint = {**settings.plan, "policy": "openai:http://127.0.0.1:1/v1", "context": {"example_turns": 1}}
    assert settings.merged(of_endpoint)["context"] == {"example_turns": 1}, "an endpoint takes no context from the run"


def test_demonstrations_without_an_oracle(run: Command, guess_file: Path) -> None:
    tiny = ("train", "tiny", f"env.id={guess_file}:NoOracle-v0", *SMALL, "num_steps=0")
    assert "NoOracle-v0 has no oracle; the demonstrations are random calls" in run(*tiny).err
    refused = run(*tiny, "sft.without_oracle=refuse")
    assert refused.code == 2
    assert "no oracle to play sft.num_demos=64 demonstrations: write oracle(), set sft.without_oracle=random" in (
        refused.err
    )


@pytest.mark.slow
def test_the_first_training_of_a_new_environment_learns(run: Command) -> None:
    run("new", "first", "--file")
    result = run("train", "tiny", "env.id=first.py", "--json").json
    assert result["success_after"] > result["success_before"] + 0.1


FAILS = NAN.replace("Nan", "Fails").replace('return "Press."', "raise RuntimeError('no server')")


def test_a_broken_environment_is_named_at_once(run: Command, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS.replace("VALUE", "1"))
    done = run("train", "tiny", "env.id=fails.py:Fails-v0", "num_steps=1", "--run-dir", "runs/mine")
    folder, note, error = done.err.splitlines()
    assert (done.code, folder) == (1, "run folder: runs/mine")
    assert note.startswith("note: an episode failed while texts were collected, task train-") and "no server" in note
    assert "agentgym check" in note and "no server" in error
    assert not Path("runs/mine/config.json").exists()


def test_failed_episodes_are_named_by_a_run(run: Command, tmp_path: Path) -> None:
    rare = NAN.replace("Nan", "Rare").replace("VALUE", "float('nan') if self.np_random.random() < 0.2 else 0.5")
    (tmp_path / "rare.py").write_text(rare)
    steps = ("num_steps=6", "eval.num_episodes=16", *SIZES, "sft.num_demos=400", "sft.num_epochs=4")
    done = run("train", "tiny", "env.id=rare.py:Rare-v0", *steps, "--run-dir", "runs/mine")
    assert done.code == 0, done.err
    assert "note: the tokenizer is trained without some texts, since the environment failed" in done.err
    assert "note: demos: an episode failed: Rare-v0" in done.err
    assert re.search(r"\d+ demonstrations \(\d+ more failed\)", done.err)
    assert "agentgym check rare.py:Rare-v0 finds such faults" in done.err
    assert re.search(r"16 test tasks, \d+ failed and not counted", done.err)
    assert re.search(r"note: step \d: \d+ of \d+ episodes failed and are left out; most often \(\d+x\)", done.err)
    assert done.err.count("episodes failed and are left out") == 1, "once a run"


def test_demonstrations_stop_at_the_failure_rate_of_the_run(run: Command, tmp_path: Path) -> None:
    rare = NAN.replace("Nan", "Rare").replace("VALUE", "float('nan') if self.np_random.random() < 0.2 else 0.5")
    (tmp_path / "rare.py").write_text(rare)
    limits = ("group.max_retries=0", "group.max_failure_rate=0.02")
    done = run(
        "train", "tiny", "env.id=rare.py:Rare-v0", *SIZES, *limits, "sft.num_demos=100", "--run-dir", "runs/mine"
    )
    assert done.code == 1
    assert re.search(r"error: \d+ of \d+ episodes failed because of the infrastructure, after 0 retries each", done.err)


def test_check_names_the_reward_that_is_no_number(run: Command, tmp_path: Path) -> None:
    oracle = "    def oracle(self):\n        return self.parse_action('press')\n\n    @tool"
    source = NAN.replace("    @tool", oracle).replace("VALUE", "'nan' if self.turn > 1 else 0.0")
    (tmp_path / "nan.py").write_text(source.replace("float(", "float(").replace("max_turns=2", "max_turns=3"))
    done = run("check", "nan.py:Nan-v0", "--json")
    checks = {check["name"]: check for check in done.json["checks"]}
    failed = [name for name, check in checks.items() if not check["passed"]]
    assert set(failed) <= {"episodes", "rewards"} and failed
    assert "expected a finite number" in checks[failed[0]]["detail"]
    assert checks["oracle"]["is_blocked"] and checks["oracle"]["detail"].startswith("no result: it depends on")


def test_check_remarks_on_text_that_random_words_never_fit(run: Command, tmp_path: Path) -> None:
    source = """
from agentgym import ToolEnv, register, tool


class Doors(ToolEnv):
    \"\"\"Open the right door.\"\"\"

    def start(self, task):
        return "Open the right door."

    def state_key(self):
        return ""

    @tool
    def open(self, door: TYPE) -> str:
        \"\"\"Open a door.

        Args:
            door: its colour.
        \"\"\"
        if door == "green":
            self.finish(1.0)
        return "Nothing."


register("Doors-v0", Doors, max_turns=3)
"""
    (tmp_path / "text.py").write_text(source.replace("TYPE", "str"))
    named = source.replace("TYPE", "Literal['red', 'green']").replace("Doors-v0", "Named-v0")
    (tmp_path / "named.py").write_text("from typing import Literal\n" + named)
    details = {}
    for reference in ("text.py:Doors-v0", "named.py:Named-v0"):
        checks = run("check", reference, "--json").json["checks"]
        details[reference] = next(check["detail"] for check in checks if check["name"] == "random policy")
    assert "they rarely guess open.door. Name the choices by Literal['...']" in details["text.py:Doors-v0"]
    assert "Literal" not in details["named.py:Named-v0"]


def test_unknown_arguments_of_an_environment_are_named(run: Command) -> None:
    refused = run("train", "tiny", "env.id=agentgym/Maze-v0", "env.kwargs.sise=4").assert_one_line_error()
    assert "argument of agentgym/Maze-v0: 'sise'; did you mean 'size'?" in refused


HANG = '''
import threading

from agentgym import ToolEnv, register, tool


class Hang(ToolEnv):
    """Waits for ever."""

    def start(self, task):
        return "Press."

    @tool
    def press(self) -> str:
        """Press the button."""
        print("pressed", flush=True)
        threading.Event().wait()
        return "Pressed."


register("Hang-v0", Hang, max_turns=2)
'''


def test_check_ends_although_a_tool_hangs(run: Command, tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(HANG)
    done = run("check", "hang.py", "--step-timeout", "0.2")
    assert done.code == 1
    assert "✗  episodes             turn 1: not done after 0.2 s, at " in done.out
    assert re.search(r"–  \d+ others +no result, since they depend on a check that failed: rewards", done.out)
    assert re.search(r"1 of 27 checks failed, \d+ depend on it and give no result\n$", done.out)


@pytest.mark.parametrize("command", [("check", "hang.py"), ("eval", "hang.py", "--policy", "random")])
def test_ctrl_c_ends_what_hangs_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "hang.py").write_text(HANG)
    words = [sys.executable, "-m", "agentgym", *command]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "pressed" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.startswith("interrupted") and err.count("\n") == 1


def test_policies_and_recipes_of_a_file(run: Command, guess: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentgym.evals.policies import policy\nfrom agentgym.trainers.recipes import load_recipe, recipe\n\n\n"
        "@policy('wise')\ndef wise(env):\n    return env.oracle()\n\n\n"
        "@recipe('mine')\ndef mine():\n    return load_recipe('tiny')\n"
    )
    assert run("eval", guess, "--policy", "mine.py:wise", "--episodes", "3", "--json").json["success"] == 1.0
    assert (
        "registers no policy 'wize', only wise"
        in run("eval", guess, "--policy", "mine.py:wize").assert_one_line_error()
    )
    planned = run("train", "mine.py:mine", f"env.id={guess}", "--dry-run", "--json").json
    assert planned["recipe"] == "tiny"


def test_a_recipes_arguments_are_not_those_of_another_environment(run: Command, guess: str) -> None:
    planned = run("train", "household-smoke", f"env.id={guess}", "--dry-run", "--json")
    assert (
        planned.json["env"] == "Guess-v0" and f"for agentgym/Household-v0, and are left out for {guess}" in planned.err
    )
    kept = run("train", "household-smoke", f"env.id={guess}", "env.kwargs={}", "--dry-run", "--json")
    assert "left out" not in kept.err
    same = run("train", "household-smoke", "env.id=Household-v0", "--dry-run", "--json")
    assert "left out" not in same.err


def test_the_limit_of_turns_is_read_without_making_the_environment(run: Command, guess: str) -> None:
    assert turn_limit("agentgym/Maze-v0", {"max_turns": 3}) == 3
    assert turn_limit(guess, {}) == make(guess).max_turns
    refused = run("train", "tiny", f"env.id={guess}", "env.kwargs.max_turn=4", "--dry-run").assert_one_line_error()
    assert "did you mean 'max_turns'?" in refused
    assert "(the recipe's own)" in run("train", "tiny", "--dry-run").out
    plan = run("train", "tiny", f"env.id={guess}", "--dry-run")
    assert plan.code == 0 and "not known" not in plan.out
    assert "not known" in run("train", "tiny", "env.id=agentgym/Maze-v0", "--dry-run").out


def test_a_misspelt_folder_is_no_name_for_the_hub(run: Command, tmp_path: Path) -> None:
    (tmp_path / "mine" / "smollm2").mkdir(parents=True)
    refused = run("eval", "agentgym/Maze-v0", "--policy", "mine/smollm").assert_one_line_error()
    assert "unknown folder 'mine/smollm'; did you mean 'mine/smollm2'?" in refused


def test_a_hanging_tool_ends_play(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hang.py").write_text(HANG)
    limits = EpisodeLimits(step_timeout_s=0.2)
    monkeypatch.setattr("agentgym.cli.terminal.EpisodeLimits", lambda: limits)
    (name,) = re.findall(r'register\("([\w-]+)"', HANG)
    done = run("play", f"hang.py:{name}", "--policy", "random")
    assert done.code == 1 and "not done after 0.2 s, at" in done.err
