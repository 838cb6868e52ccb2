"""Every rung of the ladder keeps the contract and holds what it claims here; and the kit finds what does not."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentgym.check import check_sandbox
from agentgym.sandbox import Capabilities, ExecResult, Guarantee, Limits, Sandbox
from agentgym.sandboxes import namespaces
from agentgym.sandboxes.namespaces import NamespaceSandbox
from agentgym.sandboxes.process import ProcessSandbox

ROOT = Path(__file__).resolve().parents[2]
NO_NAMESPACES = namespaces.why_not()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        ProcessSandbox,
        pytest.param(NamespaceSandbox, marks=pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)),
    ],
)
def test_it_keeps_the_contract(kind: Callable[[Limits], Sandbox]) -> None:
    report = check_sandbox(kind)
    assert report.passed, report


@pytest.mark.docker
def test_docker_keeps_the_contract() -> None:
    from agentgym.sandboxes.docker import DockerSandbox

    report = check_sandbox(open_docker)
    assert report.passed, report
    assert report.env == DockerSandbox.backend


def open_docker(limits: Limits) -> Sandbox:
    from agentgym.sandboxes.docker import DockerSandbox

    return DockerSandbox(limits=limits)


@pytest.mark.docker
def test_docker_gives_every_guarantee() -> None:
    with open_docker(Limits()) as sandbox:
        sandbox.capabilities().require({"filesystem", "network", "cpu", "memory", "pids", "time", "user"})


WITHOUT_ROOT = """
import sys
from agentgym.check import check_sandbox
from agentgym.sandboxes.{module} import {name}
report = check_sandbox({name})
print(report)
sys.exit(not report.passed)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="is without root already")
@pytest.mark.parametrize(("module", "name"), [("process", "ProcessSandbox"), ("namespaces", "NamespaceSandbox")])
def test_without_root(module: str, name: str, tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if shutil.which("setpriv") is None or python is None:
        pytest.skip("needs setpriv and a Python that other users can start")
    if module == "namespaces" and NO_NAMESPACES:
        pytest.skip(NO_NAMESPACES)
    as_nobody = ["setpriv", "--reuid", "4242", "--regid", "4242", "--clear-groups"]
    paths = f"{ROOT}:{sysconfig.get_path('purelib')}"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}
    probe = [
        *as_nobody,
        python,
        "-c",
        f"import sys; assert sys.version_info[:2] == {sys.version_info[:2]}; import agentgym",
    ]
    if subprocess.run(probe, env=env, cwd="/", capture_output=True, check=False).returncode:
        pytest.skip(f"{python} cannot import agentgym without root")
    if module == "namespaces":
        allowed = [*as_nobody, "bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"]
        if subprocess.run(allowed, env=env, cwd="/", capture_output=True, check=False).returncode:
            pytest.skip("namespaces are not allowed without root here")
    code = WITHOUT_ROOT.format(module=module, name=name)
    done = subprocess.run(
        [*as_nobody, python, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ------------------------------------------------------------------------------------- what the kit is there to find


class Boastful(ProcessSandbox):
    """Claims what a plain process cannot give."""

    def capabilities(self) -> Capabilities:
        here = super().capabilities()
        claims = tuple(Guarantee(name=one.name, in_force=True, how="believe me") for one in here.guarantees)
        return Capabilities(backend="boastful", guarantees=claims)


class Forgetful(ProcessSandbox):
    """A reset that resets nothing."""

    def reset(self) -> None:
        pass


class Patient(ProcessSandbox):
    """Says nothing of limits that were hit and of output that was cut."""

    def exec(self, command: str | Sequence[str], **options: Any) -> ExecResult:
        result = super().exec(command, **options)
        return ExecResult(
            exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr, wall_s=result.wall_s, cpu_s=0.0
        )


class Leaky(ProcessSandbox):
    """Hands the host's environment on."""

    def exec(self, command: str | Sequence[str], **options: Any) -> ExecResult:
        host = {name: value for name, value in os.environ.items() if name != "PATH"}
        return super().exec(command, **{**options, "env": {**host, **(options.get("env") or {})}})


class Wandering(ProcessSandbox):
    """Reads whatever path it is given."""

    def read(self, path: str) -> bytes:
        try:
            return Path(self.workspace, path).read_bytes()
        except OSError:
            return super().read(path)


@pytest.mark.parametrize(
    ("broken", "checks"),
    [
        (Boastful, {"guarantee: filesystem", "guarantee: network", "guarantee: memory"}),
        (Forgetful, {"reset", "snapshots: empty", "files: listing"}),
        (Patient, {"time-out: output so far", "output cap", "processor time"}),
        (Leaky, {"environment"}),
        (Wandering, {"files: outside"}),
    ],
)
def test_the_kit_finds_a_broken_sandbox(broken: type[ProcessSandbox], checks: set[str]) -> None:
    relevant = checks | {"exit codes", "files: round trip"}
    report = check_sandbox(broken, only=lambda name: name in relevant)
    assert {result.name for result in report.failures} == checks
