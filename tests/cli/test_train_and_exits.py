"""agentgym train and doctor, and how commands end when something goes wrong."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors import SafetensorError

import agentgym
from agentgym.cli.env_args import parse_pairs
from agentgym.cli.exits import describe
from agentgym.errors import (
    EnvError,
    EpisodesFailedError,
    InfrastructureError,
    RunHaltedError,
    RunStoppedError,
    UsageError,
    first_cause,
)
from agentgym.rollout.record import append_json_line
from agentgym.trainers.config.overrides import save_config
from agentgym.trainers.recipes import load_recipe

Command = Callable[..., Any]
Behave = Callable[[BaseException | None], list[tuple[Any, Path, bool]]]


@dataclass(frozen=True)
class FakeResult:
    """The fields of the trainer's result."""

    run_dir: str
    steps: int = 3
    steps_made: int = 3
    steps_trained: int = 3
    num_trajectories: int = 12
    success_base: float | None = None
    success_before: float | None = 0.25
    success_after: float | None = 0.75
    wall_s: float = 1.5


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Behave:
    """Replaces the training loop, so that no test of the command line waits for torch."""

    def behave(error: BaseException | None = None) -> list[tuple[Any, Path, bool]]:
        calls: list[tuple[Any, Path, bool]] = []

        def train(config: Any, run_dir: Path, *, resume: bool = False) -> FakeResult:
            print("chatter on standard output")
            calls.append((config, run_dir, resume))
            if error is not None:
                raise error
            run_dir.mkdir(parents=True, exist_ok=True)
            save_config(config, run_dir / "config.json")
            append_json_line(run_dir / "metrics.jsonl", {"phase": "rl", "step": 1, "success": 0.5})
            return FakeResult(str(run_dir))

        start = ModuleType("agentgym.trainers.train")
        start.train = train  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "agentgym.trainers.train", start)
        return calls

    return behave


def test_train(run: Command, trainer: Behave) -> None:
    calls = trainer(None)
    done = run("train", "household-demo", "num_steps=3", "group.group_size=4", "--json")
    assert done.json == {
        "run_dir": "runs/household-demo-001", "steps": 3, "steps_made": 3, "steps_trained": 3, "num_trajectories": 12,
        "success_base": None, "success_before": 0.25, "success_after": 0.75, "wall_s": 1.5,
    }  # fmt: skip
    config, folder, resume = calls[0]
    assert (config.num_steps, config.group.group_size, folder, resume) == (3, 4, Path("runs/household-demo-001"), False)
    shown = run("train", "household-demo", "--run-dir", "mine")
    assert "success: before RL 25.0%, after 75.0%; 3 steps" in shown.out
    assert "report: mine/report.html" in shown.out
    assert Path("mine/report.html").is_file()


def test_train_resumes_with_the_saved_configuration(run: Command, trainer: Behave, tmp_path: Path) -> None:
    from agentgym.trainers.config.overrides import apply_overrides, save_config
    from agentgym.trainers.recipes import load_recipe

    calls = trainer(None)
    config = apply_overrides(load_recipe("household-demo"), ["seed=7"])
    (tmp_path / "old").mkdir()
    save_config(config, tmp_path / "old" / "config.json")
    assert run("train", "--resume", "old").code == 0
    assert calls == [(config, Path("old"), True)]
    assert "keeps its recipe" in run("train", "household-demo", "--resume", "old").assert_one_line_error()
    assert "keeps its values of seed" in run("train", "--resume", "old", "seed=8").assert_one_line_error()
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "config.json").write_text('{"eval": {}}')
    said = run("train", "--resume", "seen").assert_one_line_error()
    assert "seen is an evaluation, not a training run: agentgym eval --resume seen continues it" in said
    assert run("train", "--resume", "old", "num_steps=7000").code == 0
    assert calls[1] == (replace(config, num_steps=7000), Path("old"), True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["household-dmo"], "did you mean 'household-demo'?"),
        ([], "name a recipe, as in agentgym train tiny env.id=ID (agentgym list --recipes describes all)"),
        (["env.id=ware.py"], "name the recipe before env.id=ware.py, as in agentgym train tiny env.id=ware.py"),
        (["household-demo", "num_stesp=3"], "did you mean 'num_steps'?"),
        (["household-demo", "num_steps=three"], "num_steps"),
        (["household-demo", "num_steps"], "expected key=value"),
        (["--resume", "nowhere"], "no folder 'nowhere'"),
        (["tiny", "--num-steps", "3"], "no option '--num-steps'; write a setting of the run as num_steps=VALUE"),
        (["tiny", "--optimizer.lr=1e-3"], "write a setting of the run as optimizer.lr=VALUE"),
        (["tiny", "--dry-rum"], "did you mean '--dry-run'?"),
        (["tiny", "credit.shapers=[{kind: invalid_call}]"], "lists and objects are written as JSON"),
    ],
)
def test_train_refuses_bad_input(run: Command, trainer: Behave, arguments: list[str], said: str) -> None:
    calls = trainer(None)
    assert said in run("train", *arguments).assert_one_line_error()
    assert calls == []


def test_ctrl_c_says_how_to_go_on(run: Command, trainer: Behave) -> None:
    trainer(KeyboardInterrupt())
    done = run("train", "household-demo", "--json")
    assert done.code == 130
    assert done.json == {"error": "interrupted; nothing was saved yet", "exit_code": 130}
    Path("runs/begun").mkdir(parents=True)
    save_config(load_recipe("household-demo"), Path("runs/begun/config.json"))
    done = run("train", "--resume", "runs/begun")
    assert (done.code, done.err) == (130, "interrupted; to go on: agentgym train --resume runs/begun\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("no such model"), 2, "no such model"),
        (RunStoppedError("loss is not finite at step 4"), 1, "loss is not finite at step 4"),
        (EnvError("step: it broke"), 1, "step: it broke"),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/x"),
            1,
            "the disk is full while writing runs/x; what was finished is whole; free some space, then: agentgym train",
        ),
        (
            SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
            1,
            "the disk is full; what was finished is whole; free some space, then: agentgym train --resume runs/",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), 1, "Permission denied: runs/x"),
        (ExceptionGroup("a", [ValueError("x"), ExceptionGroup("b", [UsageError("two\nlines")])]), 2, "two lines"),
        (
            ExceptionGroup("a", [OSError(errno.ENOSPC, "No space left on device")]),
            1,
            "the disk is full; what was finished is whole; free some space, then: agentgym train --resume runs/",
        ),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero ("),
    ],
)
def test_every_error_is_one_line(run: Command, trainer: Behave, error: BaseException, code: int, said: str) -> None:
    trainer(error)
    Path("runs/begun").mkdir(parents=True)
    save_config(load_recipe("household-demo"), Path("runs/begun/config.json"))
    done = run("train", "--resume", "runs/begun", "--json")
    last = done.err.splitlines()[-1]
    assert (done.code, done.json) == (code, {"error": last.removeprefix("error: "), "exit_code": code})
    assert last.startswith("error: ") and said in last
    assert "Traceback" not in done.err


def test_a_disk_that_was_full_at_the_start_has_nothing_to_resume(run: Command, trainer: Behave) -> None:
    trainer(OSError(errno.ENOSPC, "No space left on device"))
    done = run("train", "household-demo")
    assert (done.code, done.err) == (1, "error: the disk is full; nothing was saved yet; free some space\n")


def test_a_command_to_copy_is_quoted(run: Command, trainer: Behave) -> None:
    trainer(None)
    assert "agentgym eval 'my \"own\" run' --policy random" in run("train", "tiny", "--run-dir", 'my "own" run').out


def test_a_halted_run_names_the_command_that_goes_on_and_no_place(run: Command, trainer: Behave) -> None:
    def halt() -> None:
        try:
            exec(compile("1 / 0", agentgym.__file__, "exec"))
        except ZeroDivisionError as error:
            raise RunHaltedError("rank 0 lost the other ranks") from error

    with pytest.raises(RunHaltedError) as halted:
        halt()
    assert describe(halted.value) == "rank 0 lost the other ranks"
    Path("runs/begun").mkdir(parents=True)
    save_config(load_recipe("household-demo"), Path("runs/begun/config.json"))
    for error, told in (
        (halted.value, "rank 0 lost the other ranks; to go on: agentgym train --resume runs/begun\n"),
        (
            EpisodesFailedError("8 of 8"),
            "8 of 8; to run the failed episodes again: agentgym train --resume runs/begun\n",
        ),
        (RunStoppedError("the loss is nan"), "the loss is nan\n"),
    ):
        trainer(error)
        assert run("train", "--resume", "runs/begun").err.endswith(told)


def test_first_cause_prefers_our_own_errors() -> None:
    ours = InfrastructureError("ours")
    assert first_cause(BaseExceptionGroup("g", [KeyError("x"), ours])) is ours
    assert describe(first_cause(ExceptionGroup("g", [KeyError("x")]))).startswith("KeyError: 'x'")


def test_parser_errors_exit_2(run: Command) -> None:
    for arguments in (["frobnicate"], ["list", "--jsn"], ["play"], ["play", "x", "--policy", "god"]):
        done = run(*arguments)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err


@pytest.mark.parametrize("option", ["--json", "--suites"])  # in text rich sees it first, and raises SystemExit
def test_a_reader_that_goes_away_is_no_error(option: str) -> None:
    code = "from agentgym.cli.main import main; main()"
    command = [sys.executable, "-c", code, "list", option]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_doctor(run: Command) -> None:
    value = run("doctor", "--json").json
    assert set(value) == {"machine", "engines", "models", "sandboxes", "envs", "extras", "packages"}
    names = {fact["name"] for fact in value["machine"]}
    wanted = {
        "CPU",
        "memory",
        "GPU",
        "torch",
        "transformers",
        "Docker",
        "bubblewrap",
        "Chromium",
        "vllm",
        "Ray",
        "Java",
    }
    assert wanted <= names
    assert all(set(fact) == {"name", "ok", "detail", "fix"} for facts in value.values() for fact in facts)
    assert any(fact["name"] == "agentgym/Household-v0" and fact["ok"] for fact in value["envs"])
    (vllm,) = (fact for fact in value["extras"] if fact["name"] == "vllm")
    assert vllm["ok"] or ".venv-vllm/bin/pip install vllm" in vllm["fix"], (
        "not in this environment, whose torch it pins"
    )
    shown = run("doctor")
    assert shown.code == 0
    assert "machine" in shown.out


def test_version(run: Command) -> None:
    assert run("--version").out.strip().count(".") == 2


def test_pairs_are_read_as_json_where_they_parse() -> None:
    pairs = parse_pairs(["a=1", "b=[1, 2]", "c=text", "d=true", "e=", "f=x=y"])
    assert pairs == {"a": 1, "b": [1, 2], "c": "text", "d": True, "e": "", "f": "x=y"}


def test_a_setting_given_again_replaces_the_earlier_one_and_says_so(run: Command) -> None:
    done = run("train", "tiny", "num_steps=1", "num_steps=2", "num_steps=2", "--dry-run", "--json")
    assert done.json["num_steps"] == 2 and done.code == 0
    assert done.err.count("num_steps is given as 1 and as 2: the last one is used") == 1


def test_a_dry_run_writes_nothing(run: Command, tmp_path: Path) -> None:
    value = run("train", "alfworld-qwen2.5-1.5b", "--dry-run", "--json").json
    assert (value["num_parameters"], value["num_ranks"]) == (1_543_714_304, 1)
    assert value["memory"]["total"] == sum(
        size for name, size in value["memory"].items() if name not in ("total", "without_engine")
    )
    assert "1,543,714,304 parameters" in run("train", "alfworld-qwen2.5-1.5b", "--dry-run").out
    assert "2,048 for a CPU" in run("train", "smollm2-guess", "--dry-run").out
    assert "65,536 for a GPU of 24 GiB" in run("train", "tiny", "--dry-run", "--device-gib", "24").out
    with_trl = ("sft.trainer=trl", "sft.num_demos=8", "sft.observation_weight=0", "--dry-run", "--ranks", "8")
    refused = run("train", "alfworld-qwen2.5-1.5b", *with_trl).assert_one_line_error()
    assert "8 ranks cannot train with" in refused
    assert "add --dry-run" in run("train", "tiny", "--ranks", "8").assert_one_line_error()
    on_ray = ("cluster.address=auto", "cluster.num_trainer_ranks=8")
    assert run("train", "alfworld-qwen2.5-1.5b", *on_ray, "--dry-run", "--json").json["num_ranks"] == 8
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_of_several_players_is_refused_before_demonstrations(run: Command) -> None:
    done = run("train", "tiny", "env.id=agentgym/SkillChain-v0", "sft.num_demos=2", "--run-dir", "chain")
    assert "eval.kwargs.earlier of SkillChain-v0" in done.assert_one_line_error()
    assert "demonstrations" not in done.out + done.err
