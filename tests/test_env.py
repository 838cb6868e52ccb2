"""The environment contract: one episode by each path, what authors call, failures, tasks and snapshots."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import agentgym
from agentgym import Env, Message, Task, ToolCall, ToolEnv, ToolError, tool
from agentgym.env.tasks import SeededTasks
from agentgym.errors import (
    ClosedError,
    EnvError,
    ReplayMismatchError,
    ResetNeededError,
    UnknownNameError,
    UsageError,
)
from agentgym.types import MalformedCall, Observation, RewardPart, RewardRole


class Safe(ToolEnv):
    """Open a safe by a drawn digit; every wrong digit costs."""

    max_turns = 4

    def start(self, task: Task) -> str:
        self.digit = int(self.np_random.integers(10))
        self.tries: list[int] = []
        return "The safe has one digit."

    @tool
    def turn_to(self, digit: int) -> str:
        """Turn the dial."""
        self.tries.append(digit)
        if digit == self.digit:
            self.finish(1.0)
            return "It opens."
        self.award(-0.1, "wear", RewardRole.COST)
        return f"Nothing happens ({int(self.np_random.integers(1000))})."

    @tool
    def knock(self) -> str:
        """Knock."""
        if not self.tries:
            raise ToolError("touch the dial first", "too_early")
        return "Knock knock."

    def state_key(self) -> str:
        return str(sorted(set(self.tries)))


class Echo(Env):
    def start(self, task: Task) -> str:
        return task.id

    def respond(self, action: Message) -> str:
        if action.text == "bye":
            self.finish()
        return action.text


def started(env: Env, **options: Any) -> Env:
    env.reset(seed=0, options=options)
    return env


def contents(observation: Observation) -> list[str]:
    return [message.text for message in observation]


def solve(env: Safe) -> str:
    return f"turn_to: {env.digit}"


# ------------------------------------------------------------------------------------------------------- episodes


def test_an_episode_of_a_tool_environment() -> None:
    env = Safe()
    observation, info = env.reset(options={"task": "train-5"})
    assert observation == (Message("user", "The safe has one digit."),)
    assert info == {"task_id": "train-5"}
    wrong = (env.digit + 1) % 10
    observation, reward, terminated, truncated, info = env.step(f"turn_to: {wrong}")
    assert observation[0].role == "tool"
    assert observation[0].result is not None
    assert observation[0].result.name == "turn_to"
    assert (reward, terminated, truncated) == (-0.1, False, False)
    assert info == {"reward_parts": (RewardPart("wear", -0.1, RewardRole.COST),), "is_valid": True}
    observation, reward, terminated, truncated, info = env.step(solve(env))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert env.turn == 2


def test_truncation_at_max_turns_is_no_success() -> None:
    env = Safe(max_turns=2)
    env.reset(seed=0)
    wrong = f"turn_to: {(env.digit + 1) % 10}"
    assert env.step(wrong)[2:4] == (False, False)
    _, _, terminated, truncated, info = env.step(wrong)
    assert (terminated, truncated, info["success"]) == (False, True, False)
    with pytest.raises(ResetNeededError):
        env.step(wrong)


def test_success_is_of_outcome_parts_alone() -> None:
    class Generous(Echo):
        def respond(self, action: Message) -> str:
            self.award(5.0, "effort", RewardRole.PROCESS)
            return super().respond(action)

    *_, info = started(Generous()).step("bye")
    assert info["success"] is False


def test_free_text_environment() -> None:
    env = Echo()
    assert env.tools == ()
    assert contents(env.reset(options={"task": 3, "split": "test"})[0]) == ["test-3"]
    assert contents(env.step("hello")[0]) == ["hello"]
    assert env.state_key() == '["hello"]'
    assert env.step(Message("assistant", "bye"))[2] is True


def test_render_mode_ansi() -> None:
    assert started(Echo(render_mode="ansi"), task=1).render() == "train-1"
    assert started(Echo()).render() is None


def test_an_unknown_render_mode_is_refused_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(UsageError, match=r"Household-v0: render_mode='ascii': expected 'ansi' or 'human'"):
        agentgym.make("agentgym/Household-v0", render_mode="ascii")
    assert not recwarn.list


def test_unimplemented_methods_are_named() -> None:
    with pytest.raises(NotImplementedError, match=r"Env must implement start\(task\)"):
        Env().reset()
    with pytest.raises(UsageError, match="no oracle"):
        started(Echo()).oracle()
    with pytest.raises(UsageError, match="max_turns must be at least 1"):
        Echo(max_turns=0)


def test_order_of_calls() -> None:
    env = Echo()
    with pytest.raises(ResetNeededError):
        env.step("x")
    with pytest.raises(ResetNeededError):
        _ = env.task
    env.close()
    env.close()
    with pytest.raises(ClosedError):
        env.reset()
    with pytest.raises(ClosedError):
        env.step("x")
    with pytest.raises(ClosedError):
        asyncio.run(env.astep("x"))


# ---------------------------------------------------------------------------------------------------------- calls


def test_every_call_of_a_turn_is_run_on_its_own() -> None:
    env = Safe()
    env.reset(seed=0)
    wrong = (env.digit + 1) % 10
    calls = (
        MalformedCall((0, 3), "not JSON", "{{{"),
        ToolCall("knock"),
        ToolCall("turn", {"digit": 1}),
        ToolCall("turn_to", {"digit": "one"}),
        ToolCall("turn_to", {"digit": wrong}),
        ToolCall("knock"),
    )
    observation, reward, *_, info = env.step(Message("assistant", "", calls))
    assert [message.result.error_type for message in observation if message.result] == [
        "malformed_call",
        "too_early",
        "unknown_tool",
        "invalid_arguments",
        None,
        None,
    ]
    assert "Did you mean turn_to?" in observation[2].text
    assert reward == -0.1
    assert info["is_valid"] is False


def test_calls_after_the_end_are_not_run() -> None:
    env = Safe()
    env.reset(seed=0)
    observation, reward, *_ = env.step(f"{solve(env)}\nturn_to: 0\n")
    assert [message.result.error_type for message in observation if message.result] == [None, "episode_over"]
    assert reward == 1.0


def test_a_turn_without_a_call_is_invalid_and_says_what_there_is() -> None:
    observation, *_, info = started(Safe()).step(Message("assistant", "Let me think."))
    assert contents(observation) == ["Call one of the tools: turn_to, knock."]
    assert info["is_valid"] is False


def test_validity_is_of_one_turn() -> None:
    env = started(Safe())
    assert env.step("knock")[-1]["is_valid"] is False
    assert env.step("turn_to: 11")[-1]["is_valid"] is True


# ---------------------------------------------------------------------------------------------------------- tasks


def test_seeded_tasks() -> None:
    tasks = SeededTasks("test", 10)
    assert len(tasks) == len(list(tasks)) == 10
    assert [task.id for task in tasks[2:4]] == ["test-2", "test-3"]
    with pytest.raises(IndexError):
        _ = tasks[10]
    with pytest.raises(UnknownNameError, match="did you mean 'train'"):
        SeededTasks("trian", 10)


@pytest.mark.parametrize("option", [7, np.int64(7), "valid-7", SeededTasks("valid", 10)[7]])
def test_a_task_by_index_id_or_itself(option: Any) -> None:
    env = started(Echo(), task=option, split="valid")
    assert env.task == SeededTasks("valid", 10)[7]


@pytest.mark.parametrize("seed", [-1, "a", 1.5])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(UsageError, match=f": seed must be a whole number from 0 on, got {seed!r}"):
        Echo().reset(seed=seed)


def test_a_seed_of_numpy() -> None:
    (first, _), (second, _) = Safe().reset(seed=3), Safe().reset(seed=np.int64(3))  # type: ignore[arg-type]
    assert first == second


def test_an_id_is_looked_for_in_all_splits() -> None:
    assert started(Echo(), task="test-999").task.split == "test"


@pytest.mark.parametrize(
    "options", [{"task": 1_000_000}, {"task": -1}, {"task": "valid-1001"}, {"task": 1.5}, {"split": "exam"}]
)
def test_tasks_that_do_not_exist(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Few().reset(options=options)


class Few(Echo):
    def tasks(self, split: str) -> Sequence[Task]:
        return SeededTasks(split, 0 if split == "valid" else 20)


def test_a_split_without_tasks() -> None:
    with pytest.raises(UsageError, match="has no tasks in split 'valid'; it has train: 20, test: 20"):
        Few().reset(options={"split": "valid"})


def test_the_start_is_a_function_of_task_and_seed() -> None:
    def digit(**how: Any) -> int:
        env = Safe()
        env.reset(**how)
        return env.digit

    assert digit(options={"task": 3}) == digit(seed=3, options={"task": 3})  # a task's own seed
    assert len({digit(seed=seed, options={"task": 3}) for seed in range(20)}) > 1
    assert digit(seed=5) == digit(seed=5)


# ------------------------------------------------------------------------------------------------------ snapshots


def test_snapshot_by_replay_in_this_and_in_another_instance() -> None:
    env = Safe()
    env.reset(seed=0)
    wrong = (env.digit + 1) % 10
    env.step(f"turn_to: {wrong}")
    snapshot = env.snapshot()
    assert snapshot.native is None
    expected = [env.step(f"turn_to: {wrong}") for _ in range(2)]
    for target in (env, Safe()):
        target.restore(snapshot)
        assert target.turn == 1
        assert [target.step(f"turn_to: {wrong}") for _ in range(2)] == expected


class NativeSafe(Safe):
    num_started = 0

    def start(self, task: Task) -> str:
        self.num_started += 1
        return super().start(task)

    def dump_state(self) -> Any:
        return (self.digit, tuple(self.tries))

    def load_state(self, state: Any) -> None:
        self.digit, self.tries = state[0], list(state[1])


def test_native_snapshot_keeps_generator_turns_and_outcome() -> None:
    env = NativeSafe(render_mode="ansi")
    env.reset(seed=0)
    wrong = (env.digit + 1) % 10
    env.step(f"turn_to: {wrong}")
    snapshot = env.snapshot()
    expected = [env.step(f"turn_to: {wrong}"), env.step(solve(env))]
    env.restore(snapshot)
    assert (env.turn, env.num_started) == (1, 1)
    assert (env.render() or "").startswith("Nothing happens")
    assert [env.step(f"turn_to: {wrong}"), env.step(solve(env))] == expected


def test_a_replay_that_leads_elsewhere_is_refused() -> None:
    class Drifting(Safe):
        num_started = 0

        def start(self, task: Task) -> str:
            self.num_started += 1
            return super().start(task)

        def state_key(self) -> str:
            return f"start {self.num_started}"

    env = started(Drifting())
    with pytest.raises(ReplayMismatchError, match=r"0 replayed .* 'start 2', recorded was 'start 1'; is all"):
        env.restore(env.snapshot())


def test_a_native_state_that_differs_asks_for_a_copy() -> None:
    class Aliased(Safe):
        def start(self, task: Task) -> str:
            self.taken: list[str] = []
            return super().start(task)

        def state_key(self) -> str:
            return str(self.taken)

        def dump_state(self) -> Any:
            return self.taken

        def load_state(self, state: Any) -> None:
            self.taken = state

    env = Aliased()
    started(env)
    snapshot = env.snapshot()
    env.taken.append("ring")
    with pytest.raises(ReplayMismatchError, match=r"after load_state\(\) .*; does dump_state\(\) return a copy\?"):
        env.restore(snapshot)


def test_a_native_state_needs_load_state() -> None:
    class Half(Safe):
        def dump_state(self) -> Any:
            return self.digit

    env = started(Half())
    with pytest.raises(NotImplementedError, match="Half implements dump_state but not load_state"):
        env.restore(env.snapshot())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf")])
def test_awards_must_be_finite(value: float) -> None:
    env = started(Echo())
    with pytest.raises(EnvError, match=r"Echo reset: the reward part 'bonus' is -?(nan|inf), expected a finite"):
        env.award(value, "bonus")


def test_an_outcome_that_a_grader_did_not_return_is_no_reward() -> None:
    env = started(Echo())
    for outcome in (None, "all of it", [1.0]):
        with pytest.raises(EnvError, match=r"the reward part 'outcome' is .*, expected a number; a grader that"):
            env.finish(outcome)  # type: ignore[arg-type]
    assert not env.episode.is_over
    env.finish()
    over: bool = env.episode.is_over
    assert over and not env.episode.parts


def test_half_surrogates_from_an_environment_can_be_encoded() -> None:
    class Broken(ToolEnv):
        max_turns = 2

        def start(self, task: Task) -> str:
            return "caf\u00e9 \ud800"

        @tool
        def look(self) -> str:
            """Look."""
            return "\udfff!"

    env = Broken()
    (opening,), _ = env.reset(seed=0)
    assert opening.text == "caf\u00e9 ?"
    (reply,) = env.step("look")[0]
    assert reply.text == "?!" and reply.result is not None and reply.result.content == "?!"


def test_authors_may_use_names_that_come_to_mind() -> None:
    names = [
        "seed", "turn", "task", "actions", "parts", "outcome", "played", "thread", "is_over", "is_closed", "state",
        "last_observation",
    ]  # fmt: skip

    class Named(ToolEnv):
        def start(self, task: Task) -> str:
            for name in names:
                setattr(self, f"_{name}", None)
            return "Go."

        @tool
        def go(self) -> str:
            """Go."""
            self.finish(1.0)
            return "Gone."

    env = Named()
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("go")
    assert (reward, terminated, info["success"], env.episode.turn, env.episode.seed) == (1.0, True, True, 1, 1)
    with pytest.raises(AttributeError, match="episode"):
        env.episode = None  # type: ignore[misc, assignment]


def test_a_name_that_would_hide_a_private_method_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Said\._said hides a private method of ToolEnv: give it another name"):

        class Said(ToolEnv):
            def _said(self) -> str:  # type: ignore[override]
                return "go on"
