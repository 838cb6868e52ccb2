"""The conformance kit: sound environments pass, and each check fails for the fault it is there to find."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from testkit.corridors import (
    AsyncCorridor,
    BlockingCorridor,
    Corridor,
    CountsInstances,
    NativeCorridor,
    OneQuestion,
    OracleGoesLeft,
)

import agentgym
from agentgym import Env, GameEnv, Message, Task, ToolEnv, tool
from agentgym.check import Chaos, CheckReport, check_env
from agentgym.check.conformance import CHECKS
from agentgym.errors import UnknownNameError, UsageError
from agentgym.rollout.request import EpisodeLimits
from agentgym.trainers.data.demos import collect_texts

NUM_EPISODES = 3


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


class EndsByOracle(ToolEnv):
    """A world that only the oracle's word ends."""

    def start(self, task: Task) -> str:
        return "Say it."

    @tool
    def say(self, word: str) -> str:
        """Say a word."""
        if word == "mellon":
            self.finish(1.0)
        return "Nothing happens."

    def oracle(self) -> Message:
        return self.parse_action("say: mellon")


def test_the_cause_of_another_process_is_told(tmp_path: Path) -> None:
    """The error is named also if Python writes more lines after it, and an error without a text is no empty line."""
    from agentgym.check.determinism import _cause
    from agentgym.check.report import run_check

    said = 'Traceback (most recent call last):\n  File "w.py", line 3\nKeyError: "token"\n\nsys:1: ResourceWarning: x\n'
    assert _cause(said, 1) == 'KeyError: "token" sys:1: ResourceWarning: x'
    assert _cause("", -9) == "it ended by signal SIGKILL without a message"

    def fails(subject: None) -> str:
        raise TimeoutError

    assert "TimeoutError without a message" in run_check("speed", fails, None).detail


class Endless(ToolEnv):
    """A world in which nothing ends."""

    def start(self, task: Task) -> str:
        return "Wait."

    @tool
    def wait(self) -> str:
        """Wait."""
        return "Nothing happens."


def test_episodes_without_an_end_are_noticed() -> None:
    details = {check.name: check.detail for check in check_env(Endless, num_episodes=2).checks}
    assert re.match(r"200 turns of 2 episodes, of which none ended, .* set max_turns", details["episodes"])
    assert not check_env(Endless, num_episodes=2).passed
    ended = {check.name: check.detail for check in check_env(EndsByOracle, num_episodes=2).checks}
    assert ended["episodes"].startswith("warning: 200 turns"), "the oracle ends it, so it has an end"
    limited = {check.name: check.detail for check in check_env(lambda: Endless(max_turns=200), num_episodes=2).checks}
    assert limited["episodes"] == "200 turns of 2 episodes"


@dataclass(frozen=True)
class Ring:
    """A place on a ring of five, around which players walk without end."""

    place: int
    player: int = 0
    last: int = 5

    def actions(self) -> tuple[str, ...]:
        return () if self.place == self.last else ("left", "right")

    def after(self, action: str) -> "Ring":
        return replace(self, place=(self.place + (1 if action == "right" else -1)) % 5, player=1 - self.player)

    def returns(self) -> tuple[float, ...]:
        return (0.0, 0.0)

    def view(self, player: int) -> str:
        return f"Place {self.place}."


class Rounds(GameEnv):
    """A game that nobody ends."""

    def deal(self, task: Task) -> Ring:
        return Ring(int(self.np_random.integers(5)))


class RoundsWithLimit(Rounds):
    max_turns = 9


class RoundsToAPlace(Rounds):
    def deal(self, task: Task) -> Ring:
        return Ring(int(self.np_random.integers(1, 4)), last=0)


def test_a_game_without_an_end_is_told_how_games_end() -> None:
    assert "return no actions() in its last positions" in failed(check_env(Rounds, num_episodes=2))["episodes"]
    for sound in (RoundsWithLimit, RoundsToAPlace):
        report = check_env(sound, num_episodes=2)
        assert report.passed
        assert "no limit" not in {check.name: check.detail for check in report.checks}["episodes"]


class EndsByChance(Endless):
    """Some of its episodes never end."""

    def start(self, task: Task) -> str:
        self.is_short = bool(task.seed % 2)
        return super().start(task)

    @tool
    def wait(self) -> str:
        """Wait."""
        if self.is_short:
            self.finish(0.0)
        return "Nothing happens."


def test_some_episodes_without_an_end_are_noticed() -> None:
    details = {check.name: check.detail for check in check_env(EndsByChance, num_episodes=8).checks}
    assert re.match(r"warning: \d+ turns of 8 episodes, \d had no end after 100 turns", details["episodes"])


def only_codes(text: str) -> str:
    if not re.fullmatch("[0-9]{9}", text):
        raise ValueError("no code")
    return text


class Locked(NativeCorridor):
    """A corridor with a tool that no random call gets past the check of its arguments."""

    @tool
    def unlock(self, code: Annotated[str, AfterValidator(only_codes)]) -> str:
        """Unlock the corridor."""
        return "Unlocked."


def test_a_tool_whose_every_random_call_is_refused_is_a_warning() -> None:
    report = check_env(Locked, num_episodes=NUM_EPISODES)
    details = {check.name: check.detail for check in report.checks}
    assert details["episodes"].startswith("warning: ") and report.passed
    assert "no call of unlock had arguments that the tool takes" in details["episodes"]


def test_episodes_without_a_limit_have_that_of_the_rollouts() -> None:
    groups = agentgym.collect_rollouts(Endless, "random", tasks=1, group_size=2)
    assert [len(one.turns) for group in groups for one in group.trajectories] == [EpisodeLimits().max_turns] * 2
    texts, _ = collect_texts(Endless, [Task(id="t", split="train", seed=0)], seed=0, limits=EpisodeLimits(max_turns=5))
    assert texts.count("Nothing happens.") == 4, "the last observation is not read"


def test_details_say_what_does_not_apply() -> None:
    details = {check.name: check.detail for check in check_env(OneQuestion, num_episodes=2).checks}
    assert details["oracle"] == "not applicable: no oracle"
    assert details["tool schemas"].startswith("not applicable: no tools")
    assert details["cheats"].startswith("not applicable")
    assert details["process determinism"].startswith("not applicable: another process")


def test_an_id_of_this_process_alone_is_not_tried_in_another() -> None:
    from agentgym import register

    register("test/CorridorHere-v0", Corridor)
    details = {check.name: check.detail for check in check_env("test/CorridorHere-v0", num_episodes=1).checks}
    assert "registered in this process alone" in details["process determinism"]


def test_arguments_reach_the_environment_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "far.py").write_text(
        "import os\n"
        "from agentgym import Message, ToolCall, ToolEnv, register, tool\n"
        "class Far(ToolEnv):\n"
        "    def __init__(self, *, size=1, **kwargs):\n"
        "        super().__init__(**kwargs)\n"
        "        self.size = size\n"
        "    def start(self, task):\n"
        "        if self.size == 1:\n"
        "            raise RuntimeError('made without its argument')\n"
        "        self.at = 0\n"
        "        return 'Walk.'\n"
        "    @tool\n"
        "    def walk(self) -> str:\n"
        "        'Walk on.'\n"
        "        self.at += 1\n"
        "        if self.at == self.size:\n"
        "            self.finish(1.0)\n"
        "        return f'At {self.at}.'\n"
        "    def state_key(self):\n"
        "        return str(self.at)\n"
        "    def oracle(self):\n"
        "        return Message('assistant', 'walk', (ToolCall('walk', {}),))\n"
        "register('Far-v0', Far, max_turns=9)\n"
    )
    reference = f"{tmp_path / 'far.py'}:Far-v0"
    assert not check_env(reference, num_episodes=2).passed
    report = check_env(reference, num_episodes=2, arguments={"size": 3})
    details = {check.name: check for check in report.checks}
    assert details["process determinism"].detail == "2 random episodes, the same in 3 processes"
    assert details["oracle"].passed
    with pytest.raises(UnknownNameError, match="did you mean 'size'"):
        check_env(reference, arguments={"sise": 3})


def test_what_rests_on_a_failed_check_is_no_failure_of_its_own() -> None:
    report = check_env(CountsInstances, num_episodes=1)
    results = {check.name: check for check in report.checks}
    assert results["async path"].is_blocked and results["async path"].passed
    assert results["async path"].detail.startswith(
        "no result: it depends on seed determinism, which failed; this failed too: "
    )
    assert "seed determinism" in {check.name for check in report.failures}
    assert re.search(r" depends? on (it|them) and gives? no result$", report.verdict)


def test_an_exception_is_named_with_its_line_and_its_call() -> None:
    class Broken(ToolEnv):
        def start(self, task: Task) -> str:
            return "Press."

        @tool
        def press(self) -> str:
            """Press the button."""
            raise KeyError("nope")

    line = Broken.press.__code__.co_firstlineno + 3
    detail = failed(check_env(Broken, num_episodes=1))["episodes"]
    assert re.fullmatch(rf"KeyError: 'nope' \(\S*test_check_env\.py:{line}\), in turn 1, 'press'", detail), detail


@pytest.mark.parametrize("said", [None, 5])
def test_a_start_that_returns_no_text_is_named(said: Any) -> None:
    class Silent(ToolEnv):
        def start(self, task: Task) -> Any:
            return said

    detail = failed(check_env(Silent, num_episodes=1))["episodes"]
    assert detail == f"TypeError: Silent.start(task) must return text or messages, got {said}"


def test_tasks_without_a_number_are_named() -> None:
    class Yields(Corridor):
        def tasks(self, split: str) -> Any:
            yield from super().tasks(split)

    report = check_env(Yields, num_episodes=1)
    details = {check.detail for check in report.failures}
    assert details == {"EnvError: Yields.tasks('train') returned a generator, expected a sequence such as a list"}


def test_an_episode_that_cannot_be_left_is_named() -> None:
    class Clings(Corridor):
        def end_episode(self) -> None:
            raise ValueError("still in use")

    (failure,) = check_env(Clings, num_episodes=1).failures
    assert (failure.name, failure.detail.partition(" (")[0]) == ("closing", "ValueError: still in use")


def test_an_oracle_that_returns_text_is_named() -> None:
    class SaysText(Corridor):
        def oracle(self) -> Any:
            return "go: right"

    details = {check.detail for check in check_env(SaysText, num_episodes=1).failures}
    assert details == {"oracle() returned a str, expected a Message, as self.parse_action(text) makes"}


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
    assert text.startswith("OracleGoesLeft: 1 of 27 checks failed")
    assert "FAIL  oracle" in text


class Looks(Corridor):
    """A corridor that pays for looking around."""

    role = "process"

    @tool
    def look(self) -> str:
        """Look around."""
        self.award(0.2, "look", role=self.role)
        return "It is dark."


def test_a_reward_that_is_paid_again_is_named() -> None:
    report = check_env(Looks, num_episodes=NUM_EPISODES)
    detail = {check.name: check.detail for check in report.checks}["repeated rewards"]
    assert detail == (
        "warning: the same call earned 0.2 twice in the same state ('look'): "
        "a policy will repeat it; pay once, or gate it"
    )
    assert report.passed


def test_a_success_by_repetition_is_a_failure() -> None:
    class Greedy(Looks):
        role = "outcome"

    found = failed(check_env(Greedy, num_episodes=NUM_EPISODES))
    assert list(found) == ["repeated rewards"]
    assert re.search(r"task .*: the same call earned 0\.2 twice .* repeating it succeeds", found["repeated rewards"])


class Safe(ToolEnv):
    """A safe that opens for one word, with a key that is right."""

    max_turns = 4
    word = "xyzzy"

    def start(self, task: Task) -> str:
        self.is_open = False
        return "A safe. It wants a word."

    def state_key(self) -> str:
        return str(self.is_open)

    @tool
    def say(self, word: str) -> str:
        """Say a word.

        Args:
            word: any.
        """
        self.is_open = self.is_open or word == self.word
        if self.is_open and word == "out":
            self.finish(1.0)
        return "It is open." if self.is_open else f"Nothing happens at {word!r}."


class SafeWithOracle(Safe):
    def oracle(self) -> Message:
        return self.parse_action("say: out" if self.is_open else "say: xyzzy")


class SafeWithConstantKey(SafeWithOracle):
    def state_key(self) -> str:
        return "a safe"


@pytest.mark.parametrize("factory", [Safe, SafeWithOracle])
def test_a_key_that_random_calls_cannot_change_is_not_judged(factory: type[Env]) -> None:
    report = check_env(factory, num_episodes=NUM_EPISODES)
    details = {check.name: check.detail for check in report.checks}
    assert failed(report) == {}
    assert details["state keys"] == (
        "not applicable: random calls never got further than the start, so this cannot be judged; write "
        "admissible_actions()"
    )
    assert "they rarely guess say.word" in details["random policy"]
    assert details["random policy"].endswith("or list possible calls in admissible_actions()")


class DeadEnd(SafeWithConstantKey):
    """Nothing that its oracle does leads on, which is the oracle's fault or the world's."""

    max_turns = 3

    def oracle(self) -> Message:
        return self.parse_action("say: no such word")


def test_an_oracle_that_fails_shows_nothing_of_the_key() -> None:
    assert list(failed(check_env(DeadEnd, num_episodes=2))) == ["oracle"]


def test_a_key_that_the_oracle_does_not_change_either_is_a_fault() -> None:
    assert "the key never changes" in failed(check_env(SafeWithConstantKey, num_episodes=2))["state keys"]
