"""A new component is one file, and nothing else has to change: an estimator of agentgym, a program of a user."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from testkit.counting_runs import ENV_FILE, warm_model, weights, weights_in

from agentgym.rollout.record import read_records, record_path
from agentgym.types import TrajectoryGroup

ROOT = Path(__file__).resolve().parent.parent
CODE = """
from agentgym.credit.compose import credit_turns
from agentgym.credit.config import CreditConfig
from agentgym.credit.component import ESTIMATORS
from agentgym.credit.table import TurnTable

table = TurnTable.from_lists(rewards=[[0.0, 1.0], [0.25]], group_of_trajectory=[0, 0])
config = CreditConfig(estimator="best_of_group", shapers=(), gamma=0.5)
print(ESTIMATORS["best_of_group"].status, credit_turns(table, config).advantage.tolist())
"""


def test_a_new_estimator_is_one_file(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shutil.copytree(ROOT / "agentgym", tmp_path / "agentgym", symlinks=True)
    for folder in ("envs", "tools", "sandboxes", "trainers"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    patched = subprocess.run(
        ["git", "apply", "-v", "-"], input=diff, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert patched.returncode == 0, patched.stderr
    assert len(re.findall(r"^diff|^\+\+\+ ", diff, re.MULTILINE)) == 1
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def said(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("-c", CODE) == "experimental [-0.5, 0.0, -0.75]\n"
    assert "best_of_group" in said("-m", "agentgym", "list", "--credit", "--json")


# --------------------------------------------------------------------------------------- components in a user's file

EXTEND = """
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from agentgym.plugins import Options
from agentgym.rollout.program import Episode, Group, program
from agentgym.settings import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendOptions(Options):
    kind: str = "extend"
    start: Count = 1
    more: Count = 1
    most: Count = 9


@program("extend", paper="ours")
async def extend(group: Group, options: ExtendOptions) -> None:
    \"\"\"Play on while the state is a new one; half of the group is played to its end.\"\"\"

    async def one(episode: Episode) -> None:
        await episode.play(until=options.start)
        while episode.is_paused and is_promising(episode) and episode.num_turns < options.most:
            await episode.play(until=episode.num_turns + options.more)

    episodes = [group.start() for _ in range(group.size)]
    half = len(episodes) // 2
    await group.gather(*(one(episode) for episode in episodes[:half]), *(e.play() for e in episodes[half:]))
    if group.facts.step == 1 and Path("kill").exists():
        Path("kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def is_promising(episode: Episode) -> bool:
    return episode.turns[-1].is_valid
"""
COMPOSED = """
from extend import ExtendOptions, extend

from agentgym.rollout.program import Group, program


@program("twigs", uses=("branches",))
async def twigs(group: Group) -> None:
    \"\"\"Give each episode a sibling from its second turn on.\"\"\"
    while group.num_left > 1:
        episode = await group.start().play()
        if not episode.has_failed:
            await episode.branch(1 if episode.num_turns > 1 else 0).play()


@program("composed", uses=("branches",))
async def composed(group: Group) -> None:
    \"\"\"Play half of the group by one program, half by the other, at the same time.\"\"\"
    half = group.size // 2
    await group.gather(twigs(group.part(half)), extend(group.part(group.size - half), ExtendOptions(more=2)))
"""
SETTINGS = (
    f"env.id={ENV_FILE}:Counting-v0", "sft.num_demos=0", "groups_per_step=3", "group.group_size=4",
    "eval.num_episodes=2", "env.num_train_tasks=5", "zero_variance_filter=off", "checkpoint_every=1",
    "model.max_context_tokens=160",
)  # fmt: skip
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def agentgym(tmp_path: Path, warm_agentgym: Command) -> Command:
    """The command, in a temporary folder with the files of the programs."""
    (tmp_path / "extend.py").write_text(EXTEND, encoding="utf-8")
    (tmp_path / "composed.py").write_text(COMPOSED, encoding="utf-8")
    return partial(warm_agentgym, cwd=tmp_path)


def train(agentgym: Command, program: str, run_dir: str, num_steps: int = 1) -> None:
    done = agentgym(
        "train", "tiny", *SETTINGS, f"model.path={warm_model()}", f"num_steps={num_steps}",
        f"strategy.program={program}", "--run-dir", run_dir,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def groups_of(run: Path, step: int = 0) -> list[TrajectoryGroup]:
    return [record.group for record in read_records(record_path(run, step))]


def test_a_new_program_is_one_file(agentgym: Command, tmp_path: Path) -> None:
    train(agentgym, "extend.py:extend", "run")
    groups = groups_of(tmp_path / "run")
    assert len(groups) == 3 and all(len(group.trajectories) + len(group.cut) == 4 for group in groups)
    for group in groups:
        members = sorted({*range(4)} - {cut.member for cut in group.cut})
        assert {2, 3} <= {*members}, "the second half is played to its end"
        ended = [one for at, one in zip(members, group.trajectories, strict=True) if at < 2]
        assert all(turn.is_valid for one in ended for turn in one.turns[:-1])
    listed = json.loads(agentgym("list", "--strategies", "extend.py", "--json").stdout)
    assert [(row["name"], row["class"], row["paper"]) for row in listed] == [("extend", "program", "ours")]


HELPED = """
from agentgym import Task, ToolEnv, register, tool
from agentgym.env.sub_agents import AsksAgents
from agentgym.evals.policies import policy


@policy("generous")
def generous(env):
    \"\"\"Grant each wish.\"\"\"
    return env.parse_action("answer: yes")


class Wish(ToolEnv):
    granted = False

    def start(self, task):
        return "Shall the wish be granted?"

    @tool
    def answer(self, word: str) -> str:
        \"\"\"Answer.\"\"\"
        self.granted = word == "yes"
        self.finish(1.0)
        return "So be it."

    def oracle(self):
        return self.parse_action("answer: no")


class Wisher(AsksAgents, ToolEnv):
    agents = ("fairy",)

    def start(self, task):
        return "Make a wish."

    def state_key(self):
        return str(self.turn)

    def oracle(self):
        return self.parse_action("wish:")

    @tool
    async def wish(self) -> str:
        \"\"\"Make a wish.\"\"\"
        asked = Wish(max_turns=1)
        await self.ask("fairy", asked, Task(id="wish", split=self.task.split, seed=0))
        self.finish(float(asked.granted))
        return "Granted." if asked.granted else "Not granted."


register("Wisher-v0", Wisher, max_turns=2)
"""


def test_a_new_role_and_environment_are_one_file(agentgym: Command, tmp_path: Path) -> None:
    """A sub-agent's environment and the script of the role that plays it: evaluated, then trained beside."""
    (tmp_path / "helped.py").write_text(HELPED, encoding="utf-8")
    asked = ("eval", "helped.py:Wisher-v0", "--policy", "oracle", "--episodes", "3", "--json")
    success = [
        json.loads(agentgym(*asked, *role).stdout)["success"] for role in ((), ("roles.fairy=helped.py:generous",))
    ]
    assert success == [0.0, 1.0], "the oracle of the sub-agent refuses, the role grants"
    done = agentgym(
        "train", "tiny", "env.id=helped.py:Wisher-v0", "roles.fairy.policy=helped.py:generous", "num_steps=1",
        "sft.num_demos=32", "groups_per_step=2", "group.group_size=4", "eval.num_episodes=2", "--run-dir", "run",
        "zero_variance_filter=off",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    played = [one for group in groups_of(tmp_path / "run") for one in group.trajectories]
    assert {segment.role for one in played for segment in one.segments} == {""}
    assert all(one.success == bool(one.frozen_segments) for one in played)


def test_two_programs_play_a_group_together(agentgym: Command, tmp_path: Path) -> None:
    train(agentgym, "composed.py:composed", "run")
    groups = groups_of(tmp_path / "run")
    for group in groups:
        first, second = group.trajectories[:2]
        assert first.parent == -1 and second.parent in (-1, 0)
        assert second.turns[: second.branch_turn] == first.turns[: second.branch_turn]
    assert any(group.trajectories[1].parent == 0 for group in groups)


@pytest.mark.slow
def test_a_killed_run_of_a_program_ends_in_the_same_weights(agentgym: Command, tmp_path: Path) -> None:
    train(agentgym, "extend.py:extend", "whole", num_steps=3)
    (tmp_path / "kill").touch()
    killed = agentgym(
        "train", "tiny", *SETTINGS, f"model.path={warm_model()}", "num_steps=3", "strategy.program=extend.py:extend",
        "--run-dir", "killed",
    )  # fmt: skip
    assert killed.returncode == 128 + signal.SIGKILL and not (tmp_path / "kill").exists()
    resumed = agentgym("train", "--resume", "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole") != weights_in(warm_model())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", "program 'bad' returned before an episode of its group had ended"),
        ("await group.start().play(); 1 / 0", "program 'bad' failed: ZeroDivisionError: division by zero"),
        ("await asyncio.gather(group.start().play())", "program 'bad' plays outside its group"),
        ("await (await group.start().play(until=1)).branch(0).play()", "program 'bad' calls branch(): declare it"),
    ],
)
def test_a_bad_program_is_one_line_before_training(agentgym: Command, tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "bad.py").write_text(
        "import asyncio\nfrom agentgym.rollout.program import program\n\n\n"
        f'@program("bad")\nasync def bad(group):\n    {body}\n'
    )
    done = agentgym("train", "tiny", *SETTINGS, "strategy.program=bad.py:bad", "--dry-run")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.strip()]) == 1
