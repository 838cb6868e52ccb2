"""Harbor tasks that tests write, and episodes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.code.swe import SWEEnv
from agentgym.sandboxes import namespaces
from agentgym.types import Message, ToolCall

RUNGS = [
    "process",
    pytest.param("namespaces", marks=pytest.mark.skipif(bool(namespaces.why_not()), reason="no namespaces here")),
    pytest.param("docker", marks=pytest.mark.docker),
]
FILES = {
    "task.toml": "[verifier]\ntimeout_sec = 60.0\n",
    "instruction.md": "Write hello into /app/hello.txt.",
    "environment/Dockerfile": "FROM agentgym-sandbox:1\nWORKDIR /app\n",
    "tests/test.sh": "grep -q hello /app/hello.txt && echo 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "echo hello > hello.txt\n",
}
MakeTask = Callable[..., SWEEnv]


@pytest.fixture
def make_task(tmp_path: Path, request: pytest.FixtureRequest) -> MakeTask:
    def made(files: dict[str, str], executable: tuple[str, ...] = (), **options: Any) -> SWEEnv:
        for path, text in {**FILES, **files}.items():
            file = tmp_path / "hello" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            if path in executable:
                file.chmod(0o755)
        env = SWEEnv(source="harbor", harbor_path=tmp_path, **{"sandbox": "process", **options})
        request.addfinalizer(env.close)
        return env

    return made


def run(env: SWEEnv, command: str) -> str:
    return str(env.step(Message("assistant", "", (ToolCall("bash", {"command": command}),)))[0][0].text)


def outcome(env: SWEEnv, command: str = "echo hello > hello.txt") -> tuple[float, dict[str, Any]]:
    """Return the outcome of an episode with one command, and the last step's info."""
    env.reset(seed=0)
    run(env, command)
    info = env.step(Message("assistant", "", (ToolCall("submit", {}),)))[4]
    return sum(part.value for part in info["reward_parts"] if part.name == "tests_passed"), info
