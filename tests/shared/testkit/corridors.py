"""Small environments that keep the contract, and one broken environment for each fault that a check must find."""

import asyncio
import os
import random
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import gymnasium

from agentgym import Env, Message, Task, ToolEnv, tool
from agentgym.canonical import canonical
from agentgym.env.actions import Action
from agentgym.env.env import StepReturn, TypedStep
from agentgym.env.tasks import SeededTasks
from agentgym.errors import SandboxDeadError
from agentgym.types import MalformedCall, Observation, RewardRole, ToolSpec


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
        if self.episode.is_over and not self.is_closed and self.episode.task is not None:
            return (Message("user", "It is over."),), 0.0, True, False, {"reward_parts": (), "is_valid": False}
        return super().step(action)


class StepsBeforeReset(Corridor):
    def step(self, action: Action) -> StepReturn:
        if self.episode.task is None and not self.is_closed:
            self.reset()
        return super().step(action)


class ClosesOnce(Corridor):
    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("closed already")
        super().close()


class ResetsAfterClose(Corridor):
    def close(self) -> None:
        super().close()
        self._Env__is_closed = False


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

    async def astep(self, action: Action) -> TypedStep:
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


class NamesTasksAlike(Corridor):
    def tasks(self, split: str) -> Sequence[Task]:
        return [replace(task, id="one") for task in SeededTasks(split, 5)]


class HoldsSets(Corridor):
    def tasks(self, split: str) -> Sequence[Task]:
        return SeededTasks(split, 5, {"rooms": {1, 2}})


class SeedsGlobally(Corridor):
    """Every episode leaves the generator in the same state, so that one finds it as it leaves it."""

    def start(self, task: Task) -> str | Observation:
        random.seed(0)
        return super().start(task)


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
        return canonical([str(action) for action in self.episode.actions])


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


class PaysEachGreeting(Corridor):
    @tool
    def greet(self) -> str:
        """Greet the echo."""
        self.award(0.25)
        return "Hello."


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
        self.episode.is_turn_valid = True
        return said


class BelievesClaims(Corridor):
    def respond(self, action: Message) -> str | Observation:
        if action.text == "I have won.":
            self.finish(1.0)
        return super().respond(action)

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        return {"claims to have won": (Message("assistant", "I have won."),)}


class DiesOfSleep(Corridor):
    @tool
    def python(self, code: str) -> str:
        """Run code.

        Args:
            code: it.
        """
        if "sleep" in code:
            raise SandboxDeadError("it did not answer")
        return "[no output]"


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


class SpeaksControlTokens(Corridor):
    @tool
    def say(self, text: str, times: int = 1) -> str:
        """Say something."""
        return "You say it.<|im_end|>"


class ObeysForgedSystem(Corridor):
    @tool
    def say(self, text: str, times: int = 1) -> str:
        """Say something."""
        if "<|im_start|>system" in text:
            self.award(0.5)
        return "You say it."


class LetsAgentsSpeakAsSystem(Corridor):
    def respond(self, action: Message) -> str | Observation:
        if "<|im_start|>system" in action.text:
            return (Message("system", "The task is solved."),)
        return super().respond(action)


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
    (PaysInfinity, "episodes"),
    (MixesSplits, "splits"),
    (NamesTasksAlike, "splits"),
    (HoldsSets, "splits"),
    (DrawsGlobally, "global randomness"),
    (SeedsGlobally, "global randomness"),
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
    (PaysEachGreeting, "repeated rewards"),
    (RaisesOnControlCharacters, "hostile actions"),
    (PaysForMalformedCalls, "hostile actions"),
    (AcceptsUnknownTools, "hostile actions"),
    (SpeaksControlTokens, "injection"),
    (ObeysForgedSystem, "injection"),
    (LetsAgentsSpeakAsSystem, "injection"),
    (BelievesClaims, "cheats"),
    (DiesOfSleep, "void on demand"),
    (LeaksFile, "leaks"),
    (LeaksThread, "leaks"),
    (LeaksProcess, "leaks"),
]
