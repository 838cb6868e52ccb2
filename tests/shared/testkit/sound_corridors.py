"""Sound neighbours of the broken environments: each differs from one of them by as little as makes it right."""

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium

from agentgym import Env, Message, Task, ToolEnv, register, tool
from agentgym.canonical import canonical
from agentgym.env.actions import Action
from agentgym.env.env import StepReturn
from agentgym.env.tasks import SeededTasks
from agentgym.errors import EnvError, ToolError
from agentgym.types import Observation, RewardRole
from testkit.corridors import Corridor, KeyHoldsId, NativeCorridor


class FindsNoDisplay(Corridor):
    def __init__(self) -> None:
        try:
            raise OSError("no such display")
        except OSError:
            self.display = None
        super().__init__()


class Jumps(Corridor):
    @tool
    def jump(self, high: int = 1) -> str:
        """Jump.

        Args:
            high: feet.
        """
        return "You jump."


class Rests(Corridor):
    @tool
    def reset_watch(self) -> str:
        """Set the watch to zero."""
        return "It shows 0."


class PaysMuch(Corridor):
    def oracle(self) -> Message:
        return self.parse_action("move: right")

    @tool
    def shout(self) -> str:
        """Shout."""
        self.award(-1e6, "noise", RewardRole.PROCESS)
        return "It echoes."


class Waits(ToolEnv):
    """Nothing but its limit ends it."""

    max_turns = 5

    def start(self, task: Task) -> str:
        return f"Wait {int(self.np_random.integers(9))}."

    @tool
    def wait(self) -> str:
        """Wait."""
        return "Nothing happens."


class CostsByTheParts(Corridor):
    def respond(self, action: Message) -> str | Observation:
        self.award(-0.5, "cost", RewardRole.PROCESS)
        return super().respond(action)

    async def arespond(self, action: Message) -> str | Observation:
        self.award(-0.5, "cost", RewardRole.PROCESS)
        return await super().arespond(action)


class CountsSteps(Corridor):
    num_steps = 0

    def step(self, action: Action) -> StepReturn:
        returned = super().step(action)
        self.num_steps += 1
        return returned


class ClosesTwice(Corridor):
    def close(self) -> None:
        if not self.is_closed:
            self.world = {}
        super().close()


class SpeaksTwice(Corridor):
    def start(self, task: Task) -> str | Observation:
        return (Message("user", "Good morning."), Message("user", str(super().start(task))))


class NumbersItsTasks(Corridor):
    def tasks(self, split: str) -> Sequence[Task]:
        return [
            replace(task, id=f"{split}-{n}", data={"rooms": [1, 2]}) for n, task in enumerate(SeededTasks(split, 5))
        ]


class DrawsOfItsOwn(Corridor):
    def start(self, task: Task) -> str | Observation:
        drawn = random.Random(int(self.np_random.integers(2**32))).random()
        return f"{super().start(task)} It is {drawn:.2f} feet wide."


class NamesItsSeed(Corridor):
    def start(self, task: Task) -> str | Observation:
        return f"{super().start(task)} You are walker {task.seed}."


class SharesAMap(Corridor):
    shared: ClassVar[Mapping[str, int]] = {"doors": 0}

    def start(self, task: Task) -> str | Observation:
        said = super().start(task)
        self.world |= self.shared
        return said


class AwaitsFirst(Corridor):
    async def arespond(self, action: Message) -> str | Observation:
        await asyncio.sleep(0)
        return super().respond(action)


class KeyIsPlace(Corridor):
    def state_key(self) -> str:
        return canonical([self.world["position"], self.world["length"]])


class OwnSpace(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space: gymnasium.Space[Any] = type(self.observation_space)()


class OracleSpeaksFirst(Corridor):
    def oracle(self) -> Message:
        return self.parse_action("move: right") if self.turn else self.parse_action('say: {"text": "hello"}')


class PatienceEnds(Corridor):
    def no_call(self, action: Message) -> str:
        if self.turn == 3:
            self.finish(0.0)
        return super().no_call(action)


class PaysTheFirstGreeting(Corridor):
    @tool
    def greet(self) -> str:
        """Greet the echo."""
        if not self.world.get("greeted"):
            self.world["greeted"] = 1
            self.award(0.25, "greeting", RewardRole.PROCESS)
        return "Hello."


class RefusesControlCharacters(Corridor):
    @tool
    def write(self, text: str) -> str:
        """Write something down."""
        if "\x00" in text:
            raise ToolError("the text has a null byte")
        return "Written."


class SpeaksInAngles(Corridor):
    @tool
    def say(self, text: str, times: int = 1) -> str:
        """Say something."""
        return "You say it. <the echo | answers>"


class DoubtsClaims(Corridor):
    def cheats(self) -> Mapping[str, Sequence[Message]]:
        return {"claims to have won": (Message("assistant", "I have won."),)}


class TellsOfSleep(Corridor):
    @tool
    def python(self, code: str) -> str:
        """Run code.

        Args:
            code: it.
        """
        if "sleep" in code:
            raise ToolError("it did not answer", "timeout")
        return "[no output]"


class ClosesItsFile(Corridor):
    file = -1

    def start(self, task: Task) -> str | Observation:
        self.end_episode()
        self.file = os.open(os.devnull, os.O_RDONLY)
        return super().start(task)

    def end_episode(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1

    def close(self) -> None:
        self.end_episode()
        super().close()


class KeyHoldsNoId(KeyHoldsId):
    def state_key(self) -> str:
        return canonical(self.world)


# ------------------------------------------------------------------- worlds that list actions


class Lists(ToolEnv):
    """Three doors, with a list of how some are opened."""

    max_turns = 5
    listed = ("open: 1", "open: 2")

    def start(self, task: Task) -> str:
        return "Three doors."

    def admissible_actions(self) -> tuple[str, ...]:
        return self.listed

    @tool
    def open(self, number: int) -> str:
        """Open a door."""
        if number not in (1, 2, 3):
            raise ToolError("no such door")
        if number == 3:
            self.finish(1.0)
        return f"Door {number} is open."


class ListsNonsense(Lists):
    """Every action that it lists is refused."""

    listed = ("push 1", "open: 9")


class ListsSomeNonsense(Lists):
    """One of the actions that it lists is refused."""

    listed = ("open: 1", "open: 9")


class ListsNonsenseLater(Lists):
    """Every action that it lists after the first turn is refused."""

    def admissible_actions(self) -> tuple[str, ...]:
        return self.listed if not self.turn else ("open: 9",)


class ListsOthersLater(Lists):
    """It lists other actions after the first turn, which can be taken."""

    def admissible_actions(self) -> tuple[str, ...]:
        return self.listed if not self.turn else ("open: 2",)


# ------------------------------------------------------- worlds over a service that fails now and then


class OverAService(Corridor):
    """Asks a service, which fails at every 23rd request of this process."""

    num_requests: ClassVar[int] = 0

    def answer(self) -> str:
        OverAService.num_requests += 1
        if OverAService.num_requests % 23 == 0:
            return "503 Service Unavailable"
        return "200 OK"


class TellsTheOutage(OverAService):
    """Shows the failure to the agent."""

    @tool
    def ask(self) -> str:
        """Ask the service."""
        return self.answer()


class RaisesTheOutage(OverAService):
    """Raises the failure, so that the episode is played again."""

    @tool
    def ask(self) -> str:
        """Ask the service."""
        if (answer := self.answer()) != "200 OK":
            raise EnvError(f"the service answers {answer}")
        return answer


# ------------------------------------------------------- worlds that another process can make


class Sorter(ToolEnv):
    """Names in some order, and a line on stdout, which belongs to the environment."""

    max_turns = 6
    is_sorted = True

    def start(self, task: Task) -> str:
        print("a line of the environment", flush=True)
        os.system("echo a line of its child")
        names = {"ada", "grace", "edsger", "barbara", "alan", "donald", "john", "leslie"}
        return ", ".join(sorted(names) if self.is_sorted else names) + f" {int(self.np_random.integers(100))}"

    @tool
    def pick(self, name: str) -> str:
        """Pick a name."""
        self.finish(1.0 if name == "nobody" else 0.0)
        return "So be it."


class OrderOfASet(Sorter):
    is_sorted = False


register("testkit/Sorter-v0", Sorter)
register("testkit/OrderOfASet-v0", OrderOfASet)

SOUND: list[tuple[type[Env] | str, str]] = [
    (FindsNoDisplay, "construction"),
    (Jumps, "tool schemas"),
    (Rests, "control verbs"),
    (PaysMuch, "episodes"),
    (Waits, "episodes"),
    (CostsByTheParts, "rewards"),
    (CountsSteps, "order of calls"),
    (ClosesTwice, "closing"),
    (SpeaksTwice, "observations"),
    (NumbersItsTasks, "splits"),
    (DrawsOfItsOwn, "global randomness"),
    (NamesItsSeed, "seed determinism"),
    (KeyHoldsNoId, "seed determinism"),
    ("testkit.sound_corridors:testkit/Sorter-v0", "process determinism"),
    (SharesAMap, "instance isolation"),
    (AwaitsFirst, "async path"),
    (NativeCorridor, "snapshots"),
    (KeyIsPlace, "state keys"),
    (OwnSpace, "gymnasium"),
    (OracleSpeaksFirst, "oracle"),
    (PatienceEnds, "no-op policy"),
    (Lists, "random policy"),
    (ListsOthersLater, "random policy"),
    (PaysTheFirstGreeting, "repeated rewards"),
    (RefusesControlCharacters, "hostile actions"),
    (SpeaksInAngles, "injection"),
    (DoubtsClaims, "cheats"),
    (TellsOfSleep, "void on demand"),
    (ClosesItsFile, "leaks"),
]
"""Sound environments, each with the check that its broken neighbour fails."""

BROKEN_TOO: list[tuple[type[Env] | str, str]] = [
    (ListsNonsense, "random policy"),
    (ListsNonsenseLater, "random policy"),
    ("testkit.sound_corridors:testkit/OrderOfASet-v0", "process determinism"),
]
"""Broken environments beside their sound neighbours, with the check that they fail."""
