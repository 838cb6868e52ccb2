"""Fault injection: faults strike as planned, and apart from them the wrapped environment is untouched."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from agentgym import Env, Message, Task, ToolEnv, tool
from agentgym.check import Chaos, random_action
from agentgym.check.chaos import Fault
from agentgym.check.episodes import first_difference, play
from agentgym.env.tasks import SeededTasks
from agentgym.errors import ConfigError, EnvError, EnvTimeoutError, ResetNeededError, boundary

TASKS = SeededTasks("train", 50)


class Dice(ToolEnv):
    """Every turn draws from the environment's own generator."""

    max_turns = 6
    secret = 17

    def start(self, task: Task) -> str:
        return f"You hold a die that shows {int(self.np_random.integers(1, 7))}."

    @tool
    def roll(self) -> str:
        """Roll the die."""
        return f"It shows {int(self.np_random.integers(1, 7))}."

    def oracle(self) -> Message:
        return self.parse_action("roll")


def faults_of(env: Chaos) -> list[str]:
    """What strikes in one episode of each task, as text."""
    struck = []
    for task in TASKS:
        try:
            env.reset(options={"task": task})
            for _ in range(6):
                env.step("roll")
        except (RuntimeError, TimeoutError) as error:
            struck.append(str(error))
    return struck


def test_without_faults_it_is_the_wrapped_environment() -> None:
    for task in TASKS[:5]:
        plain = play(Dice(), random_action, task, np.random.default_rng(0))
        wrapped = play(Chaos(Dice(), slow=0.5, slow_s=0.0, seed=3), random_action, task, np.random.default_rng(0))
        assert first_difference(plain, wrapped) is None


def test_everything_is_delegated() -> None:
    inner = Dice(render_mode="ansi")
    env = Chaos(inner)
    observation, _ = env.reset(options={"task": TASKS[3]})
    assert env.env_id == "Dice"
    assert env.task == TASKS[3]
    assert env.tools == inner.tools
    assert env.tasks("test")[0].split == "test"
    assert env.state_key() == inner.state_key()
    assert env.oracle() == inner.oracle()
    assert env.parse_action("roll") == inner.parse_action("roll")
    assert env.admissible_actions() == ()
    assert env.max_turns == 6
    assert env.render() == observation[0].text
    assert env.secret == 17
    assert env.np_random is inner.np_random
    snapshot = env.snapshot()
    said = env.step("roll")
    assert env.turn == 1
    env.restore(snapshot)
    assert env.turn == 0
    assert env.step("roll") == said
    env.close()
    with pytest.raises(RuntimeError):
        inner.reset()
    with pytest.raises(AttributeError):
        _ = env.no_such_attribute


def test_faults_are_a_function_of_seed_task_attempt_and_turn() -> None:
    first = faults_of(Chaos(Dice(), crash=0.1, hang=0.1, seed=1, attempts=Counter()))
    assert first == faults_of(Chaos(Dice(), crash=0.1, hang=0.1, seed=1, attempts=Counter()))
    assert first != faults_of(Chaos(Dice(), crash=0.1, hang=0.1, seed=2, attempts=Counter()))
    # 7 draws an episode, each a fault with probability 0.2: 1 - 0.8 ** 7 = 79 % of 50 episodes
    assert 30 <= len(first) <= 48
    assert 0 < sum("crash" in fault for fault in first) < len(first)


def test_another_attempt_meets_other_faults_also_in_a_new_instance() -> None:
    attempts: Counter[str] = Counter()
    one, two = (faults_of(Chaos(Dice(), crash=0.2, attempts=attempts)) for _ in range(2))
    assert [fault.replace("attempt 1", "attempt 2") for fault in one] != two


def test_retries_on_fresh_instances_get_through() -> None:
    attempts: Counter[str] = Counter()
    for task in TASKS[:10]:
        for _ in range(50):
            try:
                play(Chaos(Dice(), crash=0.2, attempts=attempts), random_action, task, np.random.default_rng(0))
                break
            except RuntimeError:
                continue
        else:
            pytest.fail(f"task {task.id} never got through")


def test_crash_and_hang_are_classified_at_the_boundary() -> None:
    with pytest.raises(EnvError, match="crash by plan"), boundary(EnvError, "env.reset"):
        Chaos(Dice(), crash=1.0).reset()
    with pytest.raises(EnvTimeoutError, match="hang by plan"), boundary(EnvError, "env.reset"):
        Chaos(Dice(), hang=1.0).reset()


def test_asynchronous_faults() -> None:
    async def run() -> None:
        crashing, hanging, slow = Chaos(Dice(), crash=1.0), Chaos(Dice(), hang=1.0), Chaos(Dice(), slow=1.0, slow_s=0.0)
        with pytest.raises(RuntimeError, match="crash by plan"):
            await crashing.areset()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hanging.areset(), 0.01)
        await slow.areset(options={"task": TASKS[0]})
        await slow.astep("roll")
        assert slow.num_faults == {Fault.SLOW: 2}
        await slow.aclose()

    asyncio.run(run())


def test_a_fault_of_a_step_leaves_the_world_as_it_was() -> None:
    inner = Dice()
    env = Chaos(inner, crash=0.2, attempts=Counter())
    num_crashed_steps = 0
    for task in TASKS:
        before = None
        try:
            env.reset(options={"task": task})
            for _ in range(6):
                before = (inner.turn, inner.np_random.bit_generator.state)
                env.step("roll")
        except RuntimeError:
            if before is not None:
                num_crashed_steps += 1
                assert before == (inner.turn, inner.np_random.bit_generator.state)
    assert num_crashed_steps > 10


def test_before_reset_the_wrapped_environment_answers() -> None:
    with pytest.raises(ResetNeededError):
        Chaos(Dice(), crash=1.0).step("roll")


@pytest.mark.parametrize(("crash", "hang"), [(-0.1, 0.0), (0.6, 0.6)])
def test_impossible_probabilities_are_refused(crash: float, hang: float) -> None:
    with pytest.raises(ConfigError, match="sum is at most 1"):
        Chaos(Dice(), crash=crash, hang=hang)


def test_it_is_an_env() -> None:
    assert isinstance(Chaos(Dice()), Env)
