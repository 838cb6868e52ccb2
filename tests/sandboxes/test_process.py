"""The sandbox ``process`` without root: what it confines, and what it says where the kernel refuses to."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from testkit.skips import CONFINED

from agentgym.check import check_env, check_sandbox
from agentgym.check.sandbox.adversary import SIGNAL_ALL, attack_sandbox, attempts
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.code.env import CodeEnv
from agentgym.errors import SandboxRefusedError, SandboxUnavailableError
from agentgym.sandbox import Capabilities, Guarantee
from agentgym.sandboxes import process
from agentgym.sandboxes.ladder import ladder
from agentgym.sandboxes.process import ProcessSandbox, process_capabilities, why_unconfined
from agentgym.tool import tool


@CONFINED
def test_code_that_ends_all_it_may_ends_no_process_of_the_host() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        with ProcessSandbox() as sandbox:
            sandbox.exec("kill -9 -1")
            sandbox.exec("kill -STOP -1; kill -9 $PPID", timeout_s=1)
            assert sandbox.run_python("print(1)").stdout == "1\n"
        assert other.poll() is None
        assert Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user who is not root on a machine whose kernel refuses namespaces."""
    program = tmp_path / "unshare"
    program.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    monkeypatch.setattr(process, "why_unconfined", why_unconfined.__wrapped__)
    return "this machine does not allow namespaces without root (unshare: unshare failed: Operation not permitted)"


def test_where_the_kernel_refuses_namespaces_nothing_is_promised(refused: str) -> None:
    here = process_capabilities()
    assert here.in_force == frozenset()
    assert here.how("signals") == f"code can stop and end all processes of this user, since {refused}"
    told = "sandbox 'process': code can stop and end all processes of this user"
    with pytest.warns(UserWarning, match=told), suppress(SandboxUnavailableError):  # this user owns nothing here
        ProcessSandbox().close()
    with pytest.raises(SandboxRefusedError, match="signals here: code can stop and end all processes"):
        here.require({"signals"})
    (rung,) = (rung for rung in ladder() if rung.backend == "process")
    assert rung.what_holds().endswith(here.how("signals"))


OF_PROCESS = ProcessSandbox.capabilities


class Unconfined(ProcessSandbox):
    """Promises what a kernel that refuses namespaces leaves; its code has a user of its own all the same."""

    def capabilities(self) -> Capabilities:
        how = "code can stop and end all processes of this user"
        kept = [Guarantee(name=one.name, in_force=False, how=how) for one in OF_PROCESS(self).guarantees]
        return Capabilities(backend="process", guarantees=tuple(kept))


def test_an_adversary_signals_nothing_where_that_is_not_promised() -> None:
    promises = {one.name: one for one in attack_sandbox(Unconfined)}
    assert {name for name, one in promises.items() if one.num_attempts} == {"answers", "reset", "afterwards"}
    assert all(one.holds for one in promises.values())
    assert check_sandbox(Unconfined, only=lambda name: name == "capabilities").passed


def test_programs_that_signal_all_are_known() -> None:
    for group in attempts().values():
        for name, code in group.items() if isinstance(group, dict) else ():
            assert (name in SIGNAL_ALL) == ("os.kill(-1" in str(code)), name


@pytest.mark.slow
def test_a_check_leaves_out_what_could_end_the_processes_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessSandbox, "capabilities", Unconfined.capabilities)
    report = check_env(lambda: CodeEnv(sandbox="process"), num_episodes=1)
    assert report.passed, report
    (check,) = (one for one in report.checks if one.name == "void on demand")
    assert check.detail.startswith("warning: 1 of 11 programs were not tried, since in sandbox 'process' code can stop")


class Shell(ToolEnv):
    """Runs commands with the rights of whoever plays."""

    ran: ClassVar[list[str]] = []

    def start(self, task: object) -> str:
        return "Work."

    @tool
    def bash(self, command: str) -> str:
        """Run a command.

        Args:
            command: it.
        """
        self.ran.append(command)
        return "done"


def test_a_check_runs_no_hostile_program_outside_a_sandbox() -> None:
    Shell.ran.clear()
    report = check_env(Shell, num_episodes=1)
    (check,) = (one for one in report.checks if one.name == "void on demand")
    assert check.detail.startswith(
        "warning: 10 of 11 programs were not tried, since the tool runs them outside agentgym's"
    )
    assert not any("os.kill(" in command.partition("MIB =")[2] for command in Shell.ran)
