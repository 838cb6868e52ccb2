"""The pulse of a run: what is written while it plays, and that it goes when the run ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentgym.engine import EngineHealth, SamplingParams
from agentgym.env.tool_env import ToolEnv
from agentgym.evals.policies import named_policy
from agentgym.evals.runner import evaluate
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.in_flight import InFlight
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.pulse import PULSE_FILE, Beat, Pulse, read_pulse
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Completion, Message, Status, Task, Trajectory

TASK = Task(id="t", split="test", seed=0)
REQUEST = RolloutRequest(task=TASK, make_agent=named_policy("oracle"))


class Sick:
    """An engine of three servers, of which one is out."""

    policy_version, max_context_tokens = 0, 10

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session_id: str = ""
    ) -> Completion:
        raise NotImplementedError

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        raise NotImplementedError

    async def release(self, session_id: str) -> None: ...

    async def update_weights(self, version: int) -> None: ...

    async def close(self) -> None: ...

    def health(self) -> EngineHealth:
        return EngineHealth(running=7, queued=2, servers=3, ready=2, fault="it is gone")


def ended(status: Status, **changes: object) -> Trajectory:
    return Trajectory(task=TASK, env_id="x", status=status, segments=(), seed=0, **changes)  # type: ignore[arg-type]


def test_a_beat_has_episodes_failures_and_the_engine(tmp_path: Path) -> None:
    seen: list[Beat] = []

    async def main() -> None:
        in_flight = InFlight(1)
        pulse = Pulse(tmp_path, in_flight, Sick(), seen.append)
        pulse.count(REQUEST, ended(Status.COMPLETED, success=True))
        pulse.count(REQUEST, ended(Status.TIMEOUT, error="it hung", num_retries=2))
        async with in_flight.slot((0, 0)):
            second = asyncio.ensure_future(_hold(in_flight))
            await asyncio.sleep(0)
            pulse.beat("playing")
            second.cancel()
        assert read_pulse(tmp_path) == seen[0]

    asyncio.run(main())
    (beat,) = seen
    assert (beat.done, beat.playing, beat.limit, beat.waiting) == (2, 1, 1, 1)
    assert (beat.failures, beat.retries, beat.last_failure) == ({"timeout": 1}, 2, "it hung")
    assert beat.alarms == ("1 failed", "servers 2/3")
    assert beat.load == ("playing 1", "waiting 1", "queue 2")
    assert beat.health == EngineHealth(running=7, queued=2, servers=3, ready=2, fault="it is gone")


async def _hold(in_flight: InFlight) -> None:
    async with in_flight.slot((1, 0)):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at_s": 1}', '{"other": 1}'])
def test_a_beat_that_is_not_whole_is_none(tmp_path: Path, text: str) -> None:
    assert read_pulse(tmp_path) is None
    (tmp_path / PULSE_FILE).write_text(text)
    assert read_pulse(tmp_path) is None


class Wait(ToolEnv):
    """Ends at once."""

    max_turns = 1

    def start(self, task: Task) -> str:
        return "Wait."

    def oracle(self) -> Message:
        return Message("assistant", "waiting")


def test_an_evaluation_has_a_pulse_as_long_as_it_plays(tmp_path: Path) -> None:
    seen: list[object] = []

    async def main() -> None:
        pool = EnvPool(Wait, 1)
        await evaluate(
            Wait().tasks("test")[:3], pool, named_policy("oracle"), out_dir=tmp_path, suite_or_env="w", policy="oracle",
            seed=0, group_config=GroupConfig(group_size=1, min_valid=1, num_envs=1),
            on_episode=lambda trajectory: seen.append(json.loads((tmp_path / PULSE_FILE).read_text())["total"]),
        )  # fmt: skip
        await pool.close()

    asyncio.run(main())
    assert seen == [3, 3, 3]
    assert not (tmp_path / PULSE_FILE).exists()


def test_a_beat_that_fails_is_told_and_the_next_one_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym.rollout.pulse.BEAT_S", 0.0)
    beats: list[Beat] = []

    class SickAtFirst(Sick):
        num_asked = 0

        def health(self) -> EngineHealth:
            self.num_asked += 1
            if self.num_asked < 3:
                raise OSError("no answer")
            return super().health()

    async def main() -> None:
        pulse = Pulse(tmp_path, InFlight(1), SickAtFirst(), beats.append)
        pulse.start()
        while not beats:
            await asyncio.sleep(0)
        found = read_pulse(tmp_path)
        assert found is not None and found.engine is not None
        await pulse.stop()

    with pytest.warns(RuntimeWarning, match="shows no current state: OSError: no answer") as told:
        asyncio.run(asyncio.wait_for(main(), 30))
    assert len(told) == 1, "each failure once"
