"""A turn reads back a limited amount of files, whatever an agent left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentgym.envs.code.env import CodeEnv
from agentgym.errors import SandboxFileError
from agentgym.sandbox import Limits, Sandbox
from agentgym.sandboxes.ladder import open_sandbox
from agentgym.types import ToolCall

HOARDS = {
    "too_large": "for i in 1 2 3 4 5; do truncate -s 60M sparse$i; done",
    "too_many": "import os\nfor i in range(10_001): open(f'f{i}', 'w').close()",
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox("process", limits=Limits(workspace_mb=128)) as made:
        yield made


@pytest.mark.parametrize("kind", HOARDS)
def test_a_workspace_above_the_limits_is_not_read_back(sandbox: Sandbox, kind: str) -> None:
    sandbox.run_python(HOARDS[kind]) if kind == "too_many" else sandbox.exec(HOARDS[kind])
    with pytest.raises(SandboxFileError) as raised:
        sandbox.snapshot()
    assert raised.value.error_type == kind
    sandbox.reset()
    sandbox.write("small", "text")
    assert len(sandbox.snapshot().tar) < 100_000


def test_a_turn_that_leaves_too_much_is_evidence() -> None:
    env = CodeEnv(sandbox="process", max_sandboxes=1)
    try:
        env.reset(seed=0)
        shell = next(tool for tool in env.tools if tool.name in ("shell", "run", "python", "run_python"))
        name = next(iter(shell.parameters["properties"]))
        code = "import os\\nfor i in range(5):\\n    os.truncate(os.open(f's{i}', os.O_CREAT | os.O_RDWR), 60 << 20)"
        line = f"python3 -c $'{code}'" if shell.name in ("shell", "run") else code.replace("\\n", "\n")
        _, _, _, _, info = env.step([ToolCall(shell.name, {name: line})])
        assert info["is_valid"] and len(env._workspace.tar) < 100_000
    finally:
        env.close()
