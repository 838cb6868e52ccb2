"""The process's working directory, which an environment must not change."""

import asyncio
import os
from pathlib import Path

import pytest

from agentgym import Task, ToolEnv, tool
from agentgym.check import check_env
from agentgym.errors import EnvError


class Wanders(ToolEnv):
    """Changes the working directory, in its tool or at the start."""

    def __init__(self, target: str = "/", at: str = "go") -> None:
        super().__init__(max_turns=3)
        self.target, self.at = target, at

    def start(self, task: Task) -> str:
        if self.at == "start":
            os.chdir(self.target)
        return "Go."

    @tool
    async def go(self, seconds: float) -> str:
        """Go elsewhere and wait."""
        os.chdir(self.target)
        await asyncio.sleep(min(seconds, 0.01))  # `check` asks for years, too
        return "gone"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_change_fails_the_step_and_is_undone(home: Path) -> None:
    env = Wanders()
    env.reset(seed=0)
    with pytest.raises(
        EnvError, match=r"Wanders changed the working directory of the process to /; use absolute paths"
    ):
        env.step("go: 0")
    assert Path.cwd() == home
    with pytest.raises(EnvError, match="changed the working directory"):
        Wanders(at="start").reset(seed=0)
    assert Path.cwd() == home


def test_a_change_in_steps_that_overlap_is_undone(home: Path) -> None:
    async def play() -> list[object]:
        envs = [Wanders(), Wanders()]
        for env in envs:
            env.reset(seed=0)
        return await asyncio.gather(*(env.astep("go: 0.01") for env in envs), return_exceptions=True)

    first, _ = asyncio.run(play())
    assert isinstance(first, EnvError)
    assert Path.cwd() == home


def test_a_removed_folder_is_named(home: Path) -> None:
    gone = home / "gone"

    class Removes(Wanders):
        @tool
        def leave(self) -> str:
            """Remove the folder under the process."""
            gone.mkdir()
            os.chdir(gone)
            gone.rmdir()
            return "left"

    env = Removes()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="to a removed folder"):
        env.step("leave")
    assert Path.cwd() == home


def test_check_names_the_change() -> None:
    details = {one.detail for one in check_env(Wanders, num_episodes=1).failures}
    assert any("changed the working directory of the process to /" in detail for detail in details)
