"""Commands whose standard streams are closed, or whose output is read by a program that ends first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.cli.exits import open_missing_streams
from agentgym.rollout import journal

TINY = (
    "train",
    "tiny",
    "env.id=agentgym/GuessNumber-v0",
    'model={"hidden_size": 32, "num_layers": 1, "vocab_size": 320, "max_context_tokens": 320}',
    "sft.num_demos=4",
    "groups_per_step=1",
    'group={"group_size": 2, "num_envs": 2}',
    "eval.num_episodes=2",
    "num_steps=3",
    "checkpoint_every=3",
)


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script of bash in which ``agentgym`` is this checkout's command."""
    command = f'agentgym() {{ "{sys.executable}" -m agentgym "$@"; }}\n{script}'
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [
        "list <&- >&-",
        "list <&- >&- 2>&-",
        "play agentgym/GuessNumber-v0 <&-",
        "eval agentgym/GuessNumber-v0 --policy oracle --episodes 2 <&- >&- 2>&-",
    ],
)
def test_closed_streams_are_no_failure(command: str, tmp_path: Path) -> None:
    done = shell(f"agentgym {command}", tmp_path)
    assert done.returncode == 0 and "Error" not in done.stderr, done


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    source = (
        "import os, sys\nfrom agentgym.cli.exits import open_missing_streams\nopen_missing_streams()\n"
        "number = os.open('data', os.O_WRONLY | os.O_CREAT)\nos.write(2, b'chatter')\nsys.exit(number < 3)"
    )
    assert shell(f'"{sys.executable}" -c "{source}" <&- >&- 2>&-', tmp_path).returncode == 0
    assert (tmp_path / "data").read_bytes() == b""


def test_open_streams_stay_as_they_are() -> None:
    before = sys.stdin, sys.stdout, sys.stderr
    open_missing_streams()
    assert (sys.stdin, sys.stdout, sys.stderr) == before


def test_the_exit_code_is_the_commands_if_nobody_reads(tmp_path: Path) -> None:
    # the command waits until its reader has ended
    done = shell("(sleep 0.3; agentgym eval --nothing) 2>&1 | true; exit ${PIPESTATUS[0]}", tmp_path)
    assert done.returncode in (1, 2), done  # never 120, with which Python ends if it cannot flush


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_says_why_it_stopped(tmp_path: Path) -> None:
    words = " ".join(f"'{word}'" for word in TINY)
    done = shell(f"agentgym {words} --run-dir run 2>&1 | sed '/^rl 1/q'; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 1, done
    stop = journal.last_stop(tmp_path / "run")
    assert "Broken pipe" in stop["stopped"]
    saved = max((tmp_path / "run" / "checkpoints").glob("rl-*"))
    assert saved.name == f"rl-{stop['step']:06d}" and stop["step"] > 0  # though checkpoint_every is 3
