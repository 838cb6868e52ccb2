"""A command that is told to end frees what it holds, whoever tells it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WORLD = """
import asyncio
from pathlib import Path
from agentgym import Env, register

HERE = Path(__file__).parent


class Slow(Env):
    def start(self, task):
        return "Wait."

    async def arespond(self, action):
        print("playing", flush=True)
        await asyncio.sleep(600)

    def oracle(self):
        from agentgym import Message
        return Message("assistant", "wait")

    def stop(self):
        (HERE / "freed").touch()


register("Slow-v0", Slow, max_turns=3)
"""


def start(folder: Path, *prefix: str) -> subprocess.Popen[str]:
    """Start an evaluation that waits in its first step."""
    (folder / "world.py").write_text(WORLD)
    command = [
        *prefix,
        sys.executable,
        "-m",
        "agentgym",
        "eval",
        "world.py:Slow-v0",
        "--policy",
        "oracle",
        "--episodes",
        "1",
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "playing\n"
    (folder / "freed").unlink(missing_ok=True)  # of the environment that was asked for its tasks
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_frees_environments_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    listening = (  # these tests may themselves run under nohup
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "signal.signal(signal.SIGINT, signal.default_int_handler); os.execv(sys.argv[1], sys.argv[1:])"
    )
    with start(tmp_path, sys.executable, "-c", listening) as process:
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; to go on: agentgym eval --resume runs/eval-slow-v0-001" in said
    assert (tmp_path / "freed").is_file()


def test_nohup_in_a_script_keeps_a_command_running(tmp_path: Path) -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    with start(tmp_path, sys.executable, "-c", ignoring) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(0)
        assert process.poll() is None and not (tmp_path / "freed").exists()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 130 and (tmp_path / "freed").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "saved", "more"),
    [("rl 2/9", "rl-00000", ()), ("demonstrations by the oracle", "sft-00000", ("sft.num_epochs=40",))],
)
@pytest.mark.parametrize(
    ("number", "handler"), [(signal.SIGINT, "signal.default_int_handler"), (signal.SIGTERM, "signal.SIG_IGN")]
)
def test_an_interrupted_training_run_keeps_its_last_step(
    number: signal.Signals, handler: str, said: str, saved: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    """Also if no checkpoint is due, while it trains, when nothing waits, and in a background job of a script."""
    listening = f"import os, signal, sys; signal.signal(signal.SIGINT, {handler}); "
    small = ("num_steps=9", "checkpoint_every=100", "eval.num_episodes=2", "sft.num_demos=64", "groups_per_step=2")
    words = ["-m", "agentgym", "train", "tiny", *small, *more, "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-c", f"{listening}os.execv(sys.argv[1], sys.argv[1:])", sys.executable, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if said in line:
            process.send_signal(number)
    assert process.wait(60) == 130 and "interrupted; to go on: agentgym train --resume" in lines[-1]
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept[-1].startswith(saved) and kept[-1] != "rl-000000"


CRASHES = """
import os
import signal

from agentgym import ToolEnv, register, tool


class Crashes(ToolEnv):
    def start(self, task):
        return "Go."

    @tool
    def go(self) -> str:
        'Go.'
        os.kill(os.getpid(), signal.SIGSEGV)
        return "gone"


register("Crashes-v0", Crashes, max_turns=2)
"""


def test_a_crash_in_native_code_prints_the_line_that_caused_it(tmp_path: Path) -> None:
    file = tmp_path / "crashes.py"
    file.write_text(CRASHES)
    command = [sys.executable, "-m", "agentgym", "eval", str(file), "--policy", "random", "--episodes", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr and f'"{file}", line 15 in go' in done.stderr
