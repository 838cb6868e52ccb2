"""One run of a Harbor task's verifier in a new sandbox, and the reward that it leaves.

The rules for rewards are those of the package harbor 0.26 (``verifier/verifier.py``, Apache-2.0): ``reward.json`` comes
before ``reward.txt``; an empty file, a text that is no number, and a number that is not finite are errors.
"""

from __future__ import annotations

import io
import json
import math
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from agentgym.canonical import packaged
from agentgym.envs.code.file_tree import Entry, Tree, add_tree
from agentgym.envs.code.harbor import HarborTask
from agentgym.envs.code.harbor_missing import Missing, missing_in
from agentgym.envs.code.harbor_shadows import importable_in, shadow_rule
from agentgym.errors import SandboxFileError
from agentgym.sandbox import ExecResult, Sandbox, Snapshot

_REPORT: Final = "logs/agentgym-junit.xml"
_TRACE: Final = "logs/agentgym-trace.txt"
_RAN: Final = {
    "pytest": re.compile(r'<testsuite\b[^>]*\btests="[1-9]'),
    "unittest": re.compile(r"^Ran [1-9]\d* tests? in ", re.MULTILINE),
}
"""Patterns of a runner's own report of at least one test."""
_ANSWERED: Final = {"pytest": re.compile("<testsuite"), "unittest": re.compile(r"^Ran \d+ tests? in ", re.MULTILINE)}
_NO_CALL: Final = (
    r"(?!\s*(?:#|(?:pip3?|uv\s+(?:pip|add|tool\s+install)|apt(?:-get)?|echo|printf|grep|command|which)\b))"
)
_CALLS: Final = {
    "pytest": re.compile(rf"^{_NO_CALL}.*(?:\bpytest\s|\bpytest$|pytest\.main\()", re.MULTILINE),
    "unittest": re.compile(rf"^{_NO_CALL}.*-m\s+unittest\b", re.MULTILINE),
}
_PROGRAMS: Final = packaged(__package__, "harbor.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Result of one run of a verifier."""

    rewards: Mapping[str, float] | None
    """Values by name; None if Harbor would take none."""
    problem: str
    """Reason why the run is no grade; empty if it is one."""
    output: str
    timed_out: bool
    has_runner: bool
    """True if the script calls a test runner."""
    missing: frozenset[Missing] = frozenset()
    """What the verifier did not find; empty for a full reward."""
    has_runner_answered: bool
    """True if the script needs no runner, the runner has reported, or a trace shows that it was not called."""

    @property
    def is_sound(self) -> bool:
        """True if the run is a grade."""
        return not self.problem

    @property
    def reward(self) -> float:
        """The value of ``reward``, or the mean of all values if none has this name, each from 0 to 1."""
        rewards = self.rewards or {}
        values = [rewards["reward"]] if "reward" in rewards else list(rewards.values())
        return sum(min(1.0, max(0.0, value)) for value in values) / max(1, len(values))


class _NoRewardError(Exception):
    pass


def run_verifier(
    task: HarborTask,
    sandbox: Sandbox,
    variables: Mapping[str, str],
    start: Snapshot,
    left: Snapshot,
    *,
    is_traced: bool = False,
) -> Verified:
    """Run a task's verifier on a workspace in a new sandbox.

    Args:
        task: the task.
        sandbox: a sandbox in its initial state.
        variables: variables of the tests, with Harbor's paths.
        start: the initial workspace.
        left: the workspace as the agent left it.
        is_traced: note the commands of a bash script. Programs that it starts may show them, so not for grades.

    Raises:
        SandboxError: the sandbox failed, not the work.
    """
    names = importable_in(sandbox)  # computed before the work is copied
    places = {name: f"{sandbox.workspace}{name}" for name in ("/tests", "/logs", "/solution")}
    places[task.workdir] = f"{sandbox.workspace}/app"
    tests = task.placed_tree(task.tests, places)
    tests["test.sh"] = replace(tests["test.sh"], mode=tests["test.sh"].mode | 0o111)  # as Harbor does
    at_start, at_end = _names_in(start), _names_in(left)
    work = [*at_start, *at_end]
    sandbox.restore(_laid_out(start, left, shadow_rule(task, at_start, at_end, names), tests))
    env = {name: task.placed(value, places) for name, value in variables.items()}
    runner = _runner(task)
    if runner == "pytest":
        env["PYTEST_ADDOPTS"] = f"{env.get('PYTEST_ADDOPTS', '')} --junitxml={sandbox.workspace}/{_REPORT}".strip()
    result = sandbox.exec(
        ["bash", "-c", _PROGRAMS["traced" if is_traced else "plain"], "-", f"{sandbox.workspace}/{_TRACE}",
         f"{sandbox.workspace}/tests/test.sh"],
        env=env, cwd="app", timeout_s=min(task.tests_timeout_s, sandbox.limits.wall_s),
    )  # fmt: skip
    rewards, problem = _rewards(sandbox, result)
    report = _report(sandbox, runner, result) if runner else ""
    if not problem and runner and not _RAN[runner].search(report):
        problem = f"the tests ended without a report of their runner, {runner}"
    verified = Verified(
        rewards=rewards,
        problem=problem,
        output=f"{result.stdout}\n{result.stderr}".strip(),
        timed_out=result.timed_out,
        has_runner=bool(runner),
        has_runner_answered=not runner
        or _ANSWERED[runner].search(report) is not None
        or (is_traced and not _has_called(sandbox, runner)),
    )
    if verified.is_sound and verified.reward >= 1:
        return verified
    said = report if runner and not problem else f"{verified.output}\n{_logs(sandbox)}"
    trace = _trace(sandbox) if is_traced and not runner else ""
    return replace(verified, missing=missing_in(task, sandbox, said, trace, env, work=work, has_runner=bool(runner)))


def agent_variables(task: HarborTask, sandbox: Sandbox) -> dict[str, str]:
    """Return the variables of the agent's programs: those of the image, the Dockerfile and ``[environment.env]``.

    Raises:
        UsageError: a variable of this machine that the task asks for is not set.
    """
    task.verifier_env({})  # a missing variable of the tests ends the episode now, not after the work
    env = task.agent_env(variables_of_image(task, sandbox))
    return {name: task.placed(value, {task.workdir: sandbox.workspace}) for name, value in env.items()}


def variables_of_image(task: HarborTask, sandbox: Sandbox) -> dict[str, str]:
    """Return the variables that a program in the sandbox has, and those that its Docker image sets."""
    listed = sandbox.exec(["env", "-0"]).stdout
    found = dict(line.split("=", 1) for line in listed.split("\0") if "=" in line)
    if task.image is not None and sandbox.capabilities().backend == "docker":
        from agentgym.sandboxes.docker_engine import image_variables

        found |= {name: value for name, value in image_variables(task.image).items() if name != "HOME"}
    return found


def _rewards(sandbox: Sandbox, result: ExecResult) -> tuple[Mapping[str, float] | None, str]:
    """Return the rewards that a verifier left, or the reason why there are none."""
    if result.timed_out:
        return None, "the tests ran out of time"
    try:
        if (text := _file_text(sandbox, "reward.json")) is not None:
            return _json_rewards(text), ""
        if (text := _file_text(sandbox, "reward.txt")) is not None:
            return {"reward": _number(float(text), "reward.txt")}, ""
    except ValueError:
        return None, "the tests wrote a reward that is no number"
    except _NoRewardError as error:
        return None, str(error)
    return None, f"the tests wrote no reward (exit code {result.exit_code})"


def _file_text(sandbox: Sandbox, name: str) -> str | None:
    try:
        text = sandbox.read(f"logs/verifier/{name}").decode()
    except SandboxFileError as error:
        if error.error_type == "not_found":
            return None
        raise _NoRewardError(f"{name} cannot be read: {error}") from error
    if not text:
        raise _NoRewardError(f"the tests wrote an empty {name}")
    return text


def _json_rewards(text: str) -> dict[str, float]:
    try:
        data = json.loads(text)
    except RecursionError:
        raise _NoRewardError("the tests wrote a reward.json that is nested too deeply") from None
    values = data if isinstance(data, dict) else {"reward": data}
    if not values:
        raise _NoRewardError("the tests wrote a reward.json without a value")
    return {str(name): _number(value, "reward.json") for name, value in values.items()}


def _number(value: object, name: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise _NoRewardError(f"the tests wrote {str(value)[:60]!r} into {name}, which is no finite number")
    return float(value)


def _runner(task: HarborTask) -> str:
    """Return the runner whose report is required: the one that the test scripts call, or an empty text."""
    scripts = [entry.data.decode(errors="replace") for path, entry in task.tests.items() if path.endswith(".sh")]
    return next((name for name, call in _CALLS.items() if any(call.search(text) for text in scripts)), "")


def _report(sandbox: Sandbox, runner: str, result: ExecResult) -> str:
    """Return a runner's report: pytest's from a file, unittest's from the output or a log."""
    if runner == "unittest":
        return f"{result.stdout}\n{result.stderr}\n{_logs(sandbox)}"
    try:
        return sandbox.read(_REPORT).decode(errors="replace")
    except SandboxFileError:  # the script's own --junitxml overrides ours
        return sandbox.exec("find logs -name '*.xml' -type f -size -1024k -exec cat {} +").stdout


def _logs(sandbox: Sandbox) -> str:
    return sandbox.exec(f"find logs -type f -size -1024k ! -path {_TRACE} -exec cat {{}} +").stdout


def _trace(sandbox: Sandbox) -> str:
    """Return the traced commands of a script; empty for programs that are no bash scripts."""
    try:
        return sandbox.read(_TRACE).decode(errors="replace")
    except SandboxFileError:
        return ""


def _has_called(sandbox: Sandbox, runner: str) -> bool:
    """Return False if the trace of a bash script has no call of the runner."""
    trace = _trace(sandbox)
    return not trace or _CALLS[runner].search(re.sub(r"^\++ ", "", trace, flags=re.MULTILINE)) is not None


def _names_in(snapshot: Snapshot) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(snapshot.tar), mode="r:") as tar:
        return tar.getnames()


def _laid_out(
    start: Snapshot, left: Snapshot, is_as_at_the_start: Callable[[tarfile.TarInfo], bool], tests: Tree
) -> Snapshot:
    """Return the files of a verifier's sandbox, with some paths of the workspace restored from the start."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as made:
        for snapshot, of_the_start in ((left, False), (start, True)):
            with tarfile.open(fileobj=io.BytesIO(snapshot.tar), mode="r:") as tar:
                for entry in tar:
                    if is_as_at_the_start(entry) == of_the_start:
                        data = tar.extractfile(entry) if entry.isreg() else None
                        entry.name = f"app/{PurePosixPath(entry.name)}"
                        if entry.islnk():
                            entry.linkname = f"app/{PurePosixPath(entry.linkname)}"
                        made.addfile(entry, data)
        folder = Entry(mode=0o755, is_folder=True)
        add_tree(made, {"app": folder, **{f"logs/{name}": folder for name in ("verifier", "agent", "artifacts")}})
        add_tree(made, tests, "tests")
    return Snapshot(buffer.getvalue())
