"""The conformance kit: sound environments pass, and each check fails for the fault it is there to find."""

import asyncio
import os
import random
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import pytest

from agentgym import Env, Message, Task, ToolEnv, tool
from agentgym.check import Chaos, CheckReport, check_env
from agentgym.check.conformance import CHECKS
from agentgym.env import Action, SeededTasks, StepReturn
from agentgym.errors import UnknownNameError, UsageError
from agentgym.types import MalformedCall, Observation, RewardRole, ToolSpec, canonical

NUM_EPISODES = 3


class Corridor(ToolEnv):
    """Walk right to the end of a corridor: a small environment that keeps the contract."""

    max_turns = 9

    def start(self, task: Task) -> str | Observation:
        self.world = {"position": 0, "length": int(self.np_random.integers(4, 7))}
        return f"You stand in a corridor of {self.world['length']} steps."

    @tool
    def move(self, direction: Literal["left", "right"]) -> str:
        """Take a step.

        Args:
            direction: where to.
        """
        self.world["position"] = max(0, self.world["position"] + (1 if direction == "right" else -1))
        if self.world["position"] == self.world["length"]:
            self.finish(1.0)
        return f"You are at {self.world['position']}."

    @tool
    def say(self, text: str, times: int = 1) -> str:
        """Say something.

        Args:
            text: what to say.
            times: how often.
        """
        return f"You say {text!r}."

    def state_key(self) -> str:
        return canonical(self.world)

    def oracle(self) -> Message:
        return self.parse_action("move: right")


class BlockingCorridor(Corridor):
    is_blocking = True


class AsyncCorridor(Corridor):
    @tool
    async def look(self) -> str:
        """Look around."""
        await asyncio.sleep(0)
        return "It is dark."


class NativeCorridor(Corridor):
    def dump_state(self) -> Any:
        return dict(self.world)

    def load_state(self, state: Any) -> None:
        self.world = dict(state)


class OneQuestion(Env):
    """A question with one answer, as text."""

    max_turns = 1

    def start(self, task: Task) -> str:
        self.number = int(self.np_random.integers(1000))
        return f"What is {self.number} and 1?"

    def respond(self, action: Message) -> str:
        self.finish(1.0 if action.text == str(self.number + 1) else 0.0)
        return "Thank you."


def failed(report: CheckReport) -> dict[str, str]:
    return {check.name: check.detail for check in report.failures}


@pytest.mark.parametrize(
    "factory",
    [
        Corridor,
        BlockingCorridor,
        AsyncCorridor,
        NativeCorridor,
        OneQuestion,
        lambda: Chaos(NativeCorridor(), crash=0.0),
    ],
)
def test_sound_environments_pass(factory: Callable[[], Env]) -> None:
    report = check_env(factory, num_episodes=NUM_EPISODES)
    assert failed(report) == {}
    assert report.passed
    assert [check.name for check in report.checks] == ["construction", *(check.name for check in CHECKS)]


def test_details_say_what_does_not_apply() -> None:
    details = {check.name: check.detail for check in check_env(OneQuestion, num_episodes=2).checks}
    assert details["oracle"] == "not applicable: no oracle"
    assert details["tool schemas"].startswith("not applicable: no tools")
    assert details["process determinism"].startswith("not applicable: another process")


# ------------------------------------------------------------------------------- one broken environment per check


class NoDescription(Corridor):
    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(ToolSpec(spec.name, "", spec.parameters) for spec in super().tools)


class NoSchema(Corridor):
    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (*super().tools, ToolSpec("jump", "Jump.", {"type": "object", "properties": {"high": {"type": "int"}}}))


class ResetAsTool(Corridor):
    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (*super().tools, ToolSpec("reset", "Begin anew.", {"type": "object", "properties": {}}))


class StepsAfterTheEnd(Corridor):
    def step(self, action: Action) -> StepReturn:
        if self._is_over and not self._is_closed and self._task is not None:
            return (Message("user", "It is over."),), 0.0, True, False, {"reward_parts": (), "is_valid": False}
        return super().step(action)


class StepsBeforeReset(Corridor):
    def step(self, action: Action) -> StepReturn:
        if self._task is None and not self._is_closed:
            self.reset()
        return super().step(action)


class ClosesOnce(Corridor):
    def close(self) -> None:
        if self._is_closed:
            raise RuntimeError("closed already")
        super().close()


class ResetsAfterClose(Corridor):
    def close(self) -> None:
        super().close()
        self._is_closed = False


class SpeaksAsSystem(Corridor):
    def start(self, task: Task) -> str | Observation:
        return (Message("system", str(super().start(task))),)


class SaysNothing(Corridor):
    def start(self, task: Task) -> str | Observation:
        super().start(task)
        return ()


class PaysBesideTheParts(Corridor):
    def step(self, action: Action) -> StepReturn:
        observation, reward, *rest = super().step(action)
        return observation, reward + 0.5, *rest  # type: ignore[return-value]

    async def astep(self, action: Action) -> StepReturn:
        observation, reward, *rest = await super().astep(action)
        return observation, reward + 0.5, *rest  # type: ignore[return-value]


class PaysInfinity(Corridor):
    def respond(self, action: Message) -> str | Observation:
        self.award(float("inf"), "heat", RewardRole.PROCESS)
        return super().respond(action)

    async def arespond(self, action: Message) -> str | Observation:
        self.award(float("inf"), "heat", RewardRole.PROCESS)
        return await super().arespond(action)


class MixesSplits(Corridor):
    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=f"{split}-{task.seed}", split=split, seed=task.seed) for task in SeededTasks("train", 20)]


class DrawsGlobally(Corridor):
    def start(self, task: Task) -> str | Observation:
        random.random()
        return super().start(task)


class CountsInstances(Corridor):
    num_instances: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).num_instances += 1
        super().__init__()

    def start(self, task: Task) -> str | Observation:
        return f"{super().start(task)} You are walker {self.num_instances}."


class RemembersEpisodes(Corridor):
    num_episodes = 0

    def start(self, task: Task) -> str | Observation:
        self.num_episodes += 1
        return f"{super().start(task)} Welcome {'back' if self.num_episodes > 1 else ''}."


class SharesTheWorld(Corridor):
    shared: ClassVar[dict[str, int]] = {}

    def start(self, task: Task) -> str | Observation:
        said = super().start(task)
        self.shared.clear()
        self.shared.update(self.world)
        self.world = self.shared
        return said


class AsyncDiffers(Corridor):
    async def arespond(self, action: Message) -> str | Observation:
        return (Message("user", "I am asynchronous."), *super().respond(action))


class SnapshotIsAlias(Corridor):
    def dump_state(self) -> Any:
        return self.world

    def load_state(self, state: Any) -> None:
        self.world = state


class SnapshotForgets(Corridor):
    def dump_state(self) -> Any:
        return {}

    def load_state(self, state: Any) -> None:
        self.world = {"position": 0, "length": 4}


class KeyIsConstant(Corridor):
    def state_key(self) -> str:
        return "corridor"


class KeyIsHistory(Corridor):
    def state_key(self) -> str:
        return canonical([str(action) for action in self._actions])


class KeyHoldsId(Corridor):
    num_instances: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).num_instances += 1
        self.number = self.num_instances
        super().__init__()

    def state_key(self) -> str:
        return canonical([self.world, self.number])


class WrongSpace(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Text(5)  # type: ignore[assignment]


class OracleGoesLeft(Corridor):
    def oracle(self) -> Message:
        return self.parse_action("move: left")


class PatienceWins(Corridor):
    def no_call(self, action: Message) -> str:
        if self.turn == 3:
            self.finish(1.0)
        return super().no_call(action)


class AnythingWins(Corridor):
    @tool
    def move(self, direction: str) -> str:
        """Take a step."""
        self.world["position"] = self.world["length"]
        self.finish(1.0)
        return "You are there."


class RaisesOnControlCharacters(Corridor):
    @tool
    def write(self, text: str) -> str:
        """Write something down."""
        if "\x00" in text:
            raise ValueError("embedded null byte")
        return "Written."


class PaysForMalformedCalls(Corridor):
    def respond(self, action: Message) -> str | Observation:
        if any(isinstance(call, MalformedCall) for call in action.calls):
            self.award(0.1)
        return super().respond(action)


class AcceptsUnknownTools(Corridor):
    def respond(self, action: Message) -> str | Observation:
        said = super().respond(action)
        self._is_turn_valid = True
        return said


class LeaksFile(Corridor):
    def start(self, task: Task) -> str | Observation:
        self.file = os.open(os.devnull, os.O_RDONLY)
        return super().start(task)


class LeaksThread(Corridor):
    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=threading.Event().wait, args=(10.0,), daemon=True).start()


class LeaksProcess(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.child = subprocess.Popen(["sleep", "10"])


class CannotBeMade(Corridor):
    def __init__(self) -> None:
        raise OSError("no such display")


BROKEN: list[tuple[type[Env], str]] = [
    (CannotBeMade, "construction"),
    (NoDescription, "tool schemas"),
    (NoSchema, "tool schemas"),
    (ResetAsTool, "control verbs"),
    (StepsAfterTheEnd, "order of calls"),
    (StepsBeforeReset, "order of calls"),
    (ClosesOnce, "closing"),
    (ResetsAfterClose, "closing"),
    (SpeaksAsSystem, "observations"),
    (SaysNothing, "observations"),
    (PaysBesideTheParts, "rewards"),
    (PaysInfinity, "rewards"),
    (MixesSplits, "splits"),
    (DrawsGlobally, "global randomness"),
    (CountsInstances, "seed determinism"),
    (RemembersEpisodes, "seed determinism"),
    (KeyHoldsId, "seed determinism"),
    (SharesTheWorld, "instance isolation"),
    (AsyncDiffers, "async path"),
    (SnapshotIsAlias, "snapshots"),
    (SnapshotForgets, "snapshots"),
    (KeyIsConstant, "state keys"),
    (KeyIsHistory, "state keys"),
    (WrongSpace, "gymnasium"),
    (OracleGoesLeft, "oracle"),
    (PatienceWins, "no-op policy"),
    (AnythingWins, "random policy"),
    (RaisesOnControlCharacters, "hostile actions"),
    (PaysForMalformedCalls, "hostile actions"),
    (AcceptsUnknownTools, "hostile actions"),
    (LeaksFile, "leaks"),
    (LeaksThread, "leaks"),
    (LeaksProcess, "leaks"),
]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym.check.leaks._PATIENCE_S", 0.05)
    monkeypatch.setattr("agentgym.check.behaviour._SPEED_S", 0.001)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=[broken.__name__ for broken, _ in BROKEN])
def test_each_check_fails_for_its_fault_and_no_other(broken: type[Env], check: str) -> None:
    assert list(failed(check_env(broken, num_episodes=NUM_EPISODES))) == [check]


def test_every_check_has_a_broken_environment() -> None:
    without = {check.name for check in CHECKS} - {name for _, name in BROKEN}
    assert without == {"process determinism", "speed"}  # the first is tested below, the second judges nothing


FILE = """
from agentgym import ToolEnv, register, tool

class Sorter(ToolEnv):
    "Names in some order."
    max_turns = 6

    def start(self, task):
        names = {"ada", "grace", "edsger", "barbara", "alan", "donald", "john", "leslie"}
        return ", ".join(ORDER(names)) + f" {int(self.np_random.integers(100))}"

    @tool
    def pick(self, name: str) -> str:
        "Pick a name."
        self.finish(1.0 if name == "nobody" else 0.0)
        return "So be it."

register("names/ORDER-v0", Sorter)
"""


@pytest.mark.parametrize(("order", "expected"), [("sorted", []), ("list", ["process determinism"])])
def test_order_of_sets_is_found_by_other_processes(order: str, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / f"names_{order}.py"
    path.write_text(FILE.replace("ORDER", order))
    name = f"{path}:names/{order}-v0"
    report = check_env(name, num_episodes=1)
    assert list(failed(report)) == expected
    assert report.env == name


def test_an_id_of_this_process_alone_is_not_tried_in_another() -> None:
    from agentgym import register

    register("test/CorridorHere-v0", Corridor)
    details = {check.name: check.detail for check in check_env("test/CorridorHere-v0", num_episodes=1).checks}
    assert "registered in this process alone" in details["process determinism"]


def test_a_check_that_rests_on_a_failed_one_is_not_run() -> None:
    details = {check.name: check.detail for check in check_env(CountsInstances, num_episodes=1).checks}
    assert details["snapshots"] == "not run: it rests on seed determinism, which failed"


def test_inside_an_event_loop() -> None:
    async def as_in_a_notebook() -> CheckReport:
        return check_env(Corridor, num_episodes=1)

    assert asyncio.run(as_in_a_notebook()).passed


def test_usage_errors() -> None:
    with pytest.raises(UnknownNameError, match="Corridor-v9"):
        check_env("test/Corridor-v9")
    with pytest.raises(UsageError, match="num_episodes"):
        check_env(Corridor, num_episodes=0)


def test_report_as_text() -> None:
    text = str(check_env(OracleGoesLeft, num_episodes=1))
    assert text.startswith("OracleGoesLeft: 1 of 22 checks failed")
    assert "FAIL  oracle" in text
