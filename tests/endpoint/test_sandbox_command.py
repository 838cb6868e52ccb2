"""Agents that are programs inside the environment's sandbox: what they can do, what they cannot reach, how they end."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from testkit import shell_agent
from testkit.issue_commands import solving_commands
from testkit.scripted_engine import ScriptedEngine
from testkit.skips import CONFINED, KILLED_FROM_OUTSIDE

import agentgym
from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.play import HarnessAgents
from agentgym.engine import SamplingParams
from agentgym.envs.code.swe import SWEEnv
from agentgym.errors import ConfigError, UsageError
from agentgym.registry import make
from agentgym.rollout.request import RolloutRequest
from agentgym.sandboxes import namespaces
from agentgym.types import Status, Trajectory

COMMAND = "python3 {folder}/shell_agent.py {instruction}"
NAMESPACES = pytest.param(
    "namespaces", marks=pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
)
DOCKER = pytest.param("docker", marks=pytest.mark.docker)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with the agent, open to all users, as pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="agentgym-test-", dir="/tmp") as made:
        shutil.copy(str(shell_agent.__file__), made)
        Path(made).chmod(0o755)
        yield Path(made)


def played(env: SWEEnv, engine: ScriptedEngine, agent: Path, command: str = COMMAND, **settings: Any) -> Trajectory:
    config = HarnessConfig.of({"name": "sandbox_command", "command": command, "folder": str(agent), **settings})
    agents = HarnessAgents(engine, engine.renderer, SamplingParams(max_new_tokens=4096), config)

    async def play() -> Trajectory:
        try:
            return await agents.play_episode(env, RolloutRequest(task=env.tasks("train")[0], make_agent=agents))
        finally:
            await agents.close()

    try:
        return asyncio.run(play())
    finally:
        env.close()


def shown(engine: ScriptedEngine) -> str:
    """Return the last prompt as text."""
    return engine.text(engine.prompts[-1])


@pytest.mark.parametrize("backend", ["process", NAMESPACES, DOCKER])
def test_it_solves_an_issue_in_the_sandbox_that_is_graded(backend: str, folder: Path) -> None:
    env = SWEEnv(sandbox=backend)
    commands = solving_commands(env.tasks("train")[0])
    engine = ScriptedEngine([*commands, "DONE"])
    trajectory = played(env, engine, folder)
    assert trajectory.status is Status.COMPLETED, trajectory.error
    assert trajectory.success and (trajectory.reward or 0.0) >= 1.0
    (segment,) = trajectory.segments
    assert len(segment.turns) == len(commands) + 1
    assert segment.token_ids == (*engine.prompts[-1], *segment.turns[-1].completion.token_ids)
    # the environment looks into the workspace only at the end, so prompts tell states apart
    assert len({turn.state_key for turn in segment.turns}) == len(segment.turns)
    again = played(SWEEnv(sandbox=backend), ScriptedEngine(["DONE"]), folder)
    assert again.turns[0].state_key == segment.turns[0].state_key and not again.success


PROBE = """python3 - <<'END'
import json, os, socket, urllib.error, urllib.request
base = os.environ["OPENAI_BASE_URL"][:-3]
def posted(url):
    try:
        urllib.request.urlopen(urllib.request.Request(url, b"{}", {"Content-Type": "application/json"}))
        return "answered"
    except urllib.error.HTTPError as error:
        return f"{error.code} {json.load(error)['error']['message'][:30]}"
def tried(what):
    try:
        return f"done {what()}"
    except OSError as error:
        return type(error).__name__
print("tools:", posted(base + "/tools/submit"))
print("others:", posted(base[: base.index("/s/")] + "/s/0123456789abcdef01234567/v1/chat/completions"))
print("sockets:", tried(lambda: os.listdir("/opt/agentgym-endpoint")))
print("agent:", tried(lambda: open("/opt/agent/new", "w")))
print("network:", tried(lambda: socket.create_connection(("198.51.100.1", 80), 2)))
print("host:", tried(lambda: socket.create_connection(("127.0.0.1", GATEWAY), 2)))
END"""


@pytest.mark.parametrize("backend", [NAMESPACES, DOCKER])
def test_the_agent_reaches_its_own_session_alone(backend: str, folder: Path) -> None:
    env = SWEEnv(sandbox=backend)
    engine = ScriptedEngine([PROBE.replace("GATEWAY", "28431"), "DONE"])
    trajectory = played(env, engine, folder, port=28431)
    assert trajectory.status is Status.COMPLETED, trajectory.error
    said = shown(engine)
    assert "tools: 400 This session has no tools." in said, said
    assert "others: 404 No such session." in said, said
    assert "agent: OSError" in said or "agent: PermissionError" in said, said
    assert "network: done" not in said and "host: ConnectionRefusedError" in said, said
    if not os.getuid():
        assert "sockets: PermissionError" in said, said


@pytest.mark.parametrize("backend", [NAMESPACES, DOCKER])
def test_work_is_graded_where_the_endpoint_is_not(backend: str, folder: Path) -> None:
    env = SWEEnv(sandbox=backend)
    engine = ScriptedEngine(["ls /opt", "DONE"])
    assert played(env, engine, folder).status is Status.COMPLETED
    assert "agentgym-endpoint" in shown(engine)
    grading = env.pool.acquire()
    assert "agentgym-endpoint" not in grading.exec("ls -a / /opt").stdout
    assert grading.limits.memory_mb == 512
    grading.close()


@pytest.mark.parametrize("backend", ["process", DOCKER])
def test_an_agent_that_crashes_gives_no_reward(backend: str, folder: Path) -> None:
    crashed = played(SWEEnv(sandbox=backend), ScriptedEngine(["exit 3"]), folder)
    assert crashed.status is Status.ENV_ERROR and crashed.reward is None
    assert "ended with code 3" in str(crashed.error) and crashed.voids == ("agent",)
    missing = played(SWEEnv(sandbox=backend), ScriptedEngine(["DONE"]), folder, "no-such-agent")
    assert missing.status is Status.ENV_ERROR and "no-such-agent" in str(missing.error)
    wanted = played(SWEEnv(sandbox=backend), ScriptedEngine(["exit 3"]), folder, ok_codes=[3])
    assert wanted.status is Status.COMPLETED and wanted.reward is not None
    silent = played(SWEEnv(sandbox=backend), ScriptedEngine(["DONE"]), folder, "true")
    assert silent.status is Status.ENV_ERROR and "before it had a completion" in str(silent.error)


class Killer(ScriptedEngine):
    """Ends the sandbox from outside while it samples."""

    def __init__(self, texts: Sequence[str], env: SWEEnv) -> None:
        super().__init__(texts)
        self.env = env

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session_id: str = "") -> Any:
        inner: Any = self.env.sandbox._sandbox  # type: ignore[attr-defined]
        inner._container.kill() if self.env.kind.backend == "docker" else inner._worker.kill()
        return await super().generate(prompt_ids, sampling, session_id=session_id)


@pytest.mark.parametrize("backend", [pytest.param("process", marks=KILLED_FROM_OUTSIDE), DOCKER])
def test_a_sandbox_that_dies_gives_no_reward(backend: str, folder: Path) -> None:
    env = SWEEnv(sandbox=backend)
    died = played(env, Killer(["DONE"], env), folder)
    assert died.status is Status.ENV_ERROR and died.reward is None, died.error
    assert "died" in str(died.error)


class Slow(ScriptedEngine):
    """Takes longer for a completion than the agent has."""

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session_id: str = "") -> Any:
        await asyncio.sleep(100.0)
        return await super().generate(prompt_ids, sampling, session_id=session_id)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["process", DOCKER])
def test_what_time_has_left_is_graded_unless_the_engine_took_it(backend: str, folder: Path) -> None:
    env = SWEEnv(sandbox=backend)
    commands = solving_commands(env.tasks("train")[0])
    stuck = played(env, ScriptedEngine([*commands, "sleep 100"]), folder, wall_s=6.0)
    assert stuck.status is Status.COMPLETED and stuck.success, stuck.error
    slow = played(SWEEnv(sandbox=backend), Slow(["true"]), folder, wall_s=4.0)
    assert slow.status is Status.TIMEOUT and slow.reward is None, slow.error
    assert "waited" in str(slow.error)


def test_an_episode_that_takes_too_long_ends_its_sandbox(folder: Path) -> None:
    env = SWEEnv(sandbox="process")
    late = played(env, ScriptedEngine(["sleep 100"]), folder, timeout_s=2.0)
    assert late.status is Status.TIMEOUT and late.reward is None, late.error
    assert not env.sandbox.alive()


@pytest.mark.parametrize("backend", [pytest.param("process", marks=CONFINED), DOCKER])
def test_a_policy_that_kills_its_program_has_its_work_graded(backend: str, folder: Path) -> None:
    for command in ("kill -9 $PPID", "kill -9 -1"):
        killed = played(SWEEnv(sandbox=backend), ScriptedEngine([command]), folder)
        assert killed.status is Status.COMPLETED and killed.success is False, killed.error


@pytest.mark.docker
def test_memory_that_the_policy_uses_up_is_no_failure(folder: Path) -> None:
    hog = "python3 -c 'x = bytearray(3 << 29)'"
    spent = played(SWEEnv(sandbox="docker"), ScriptedEngine([hog, "DONE"]), folder)
    assert spent.status is Status.COMPLETED and spent.success is False, spent.error


def test_what_cannot_work_is_refused(folder: Path, tmp_path: Path) -> None:
    swe = SWEEnv(sandbox="process")
    with pytest.raises(UsageError, match="is empty"):
        played(swe, ScriptedEngine(["DONE"]), folder, " ")
    with pytest.raises(UsageError, match=r"set harness\.folder"):
        played(swe, ScriptedEngine(["DONE"]), folder, folder="")
    with pytest.raises(UsageError, match="there is no such folder"):
        played(swe, ScriptedEngine(["DONE"]), tmp_path / "none")
    with pytest.raises(UsageError, match="contains agentgym"):
        played(swe, ScriptedEngine(["DONE"]), Path(agentgym.__file__).parents[1])
    with pytest.raises(ConfigError, match="memory_mb 100"):
        played(swe, ScriptedEngine(["DONE"]), folder, memory_mb=100)
    maze: Any = make("agentgym/Maze-v0")
    with pytest.raises(UsageError, match="has no sandbox for sandbox_command"):
        played(maze, ScriptedEngine(["DONE"]), folder)
