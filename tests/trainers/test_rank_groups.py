"""The groups that connect ranks: which device, which backend, who waits how long."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from testkit import TESTKIT
from testkit.fake_cuda import FakeCuda, FakeStream
from testkit.ranks import forked

from agentgym.env.worker_thread import call_in_own_thread
from agentgym.errors import ConfigError, EnvError, RunStoppedError, UsageError
from agentgym.trainers.distributed.config import RanksConfig
from agentgym.trainers.distributed.devices import _training_stream, on_background_thread, on_this_device
from agentgym.trainers.distributed.ranks import Ranks, join_ranks
from agentgym.trainers.engines.vllm.transfer import _both
from agentgym.trainers.trl.episode import EventLoopThread


class Recorder:
    """A process group that only notes how it was made and what was sent in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
        self.default: dict[str, Any] = {}
        self.objects: dict[str, Any] = {}
        self.sent: list[tuple[object, int]] = []
        monkeypatch.setattr(dist, "is_initialized", lambda: bool(self.default))
        monkeypatch.setattr(dist, "get_rank", lambda: 1)
        monkeypatch.setattr(
            dist, "init_process_group", lambda backend, **how: self.default.update(how, backend=backend)
        )
        monkeypatch.setattr(dist, "new_group", lambda **how: self.objects.update(how) or "objects")

        def broadcast(holder: list[Any], src: int, group: object = None) -> None:
            self.sent.append((group, cuda.current_device()))
            holder[0] = ("", "groups")

        monkeypatch.setattr(dist, "broadcast_object_list", broadcast)


def second_of_two(monkeypatch: pytest.MonkeyPatch, num_gpus: int = 2) -> tuple[FakeCuda, Recorder]:
    """Pretend to be rank 1 of two on a machine with GPUs."""
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    cuda = FakeCuda(num_gpus).install(monkeypatch)
    return cuda, Recorder(monkeypatch, cuda)


def test_tensors_travel_over_nccl_and_objects_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, made = second_of_two(monkeypatch)
    join_ranks(RanksConfig(wait_timeout_s=7200, collective_timeout_s=60))
    assert cuda.current_device() == 1
    assert made.default == {
        "backend": "cpu:gloo,cuda:nccl",
        "timeout": timedelta(seconds=60),
        "device_id": torch.device("cuda", 1),
    }
    assert made.objects == {"backend": "gloo", "timeout": timedelta(seconds=7200)}


def test_a_rank_waits_in_the_group_of_objects_on_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = second_of_two(monkeypatch)
    ranks = join_ranks()

    async def never() -> str:
        raise AssertionError("the first rank plays")

    assert asyncio.run(ranks.from_main(never)) == "groups"
    assert made.sent == [("objects", 1)]


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    second_of_two(monkeypatch, num_gpus=1)
    with pytest.raises(UsageError, match="--nproc-per-node 1"):
        join_ranks()


def test_every_thread_of_the_trainer_uses_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(4).install(monkeypatch)
    cuda.set_device(3)
    loop = EventLoopThread("test")  # in which rollouts sample beside TRL's trainer
    assert loop.run(_device(cuda)) == 3
    loop.stop()
    asyncio.run(_in_threads(cuda))


async def _in_threads(cuda: FakeCuda) -> None:
    assert await asyncio.to_thread(cuda.current_device) == 0, "a new thread begins on the first GPU"
    assert await asyncio.to_thread(on_this_device(cuda.current_device)) == 3
    assert await call_in_own_thread(on_this_device(cuda.current_device)) == 3
    seen: list[int] = []
    await _both(asyncio.sleep(0), lambda: seen.append(cuda.current_device()), None, 10)  # type: ignore[arg-type]
    assert seen == [3], "the thread in which NCCL sends weights"


def test_training_beside_rollouts_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(2).install(monkeypatch)
    cuda.set_device(1)
    _training_stream.cache_clear()
    streams = [asyncio.run(asyncio.to_thread(on_background_thread(cuda.current_stream))) for _ in range(2)]
    devices = asyncio.run(asyncio.to_thread(on_background_thread(cuda.current_device)))
    _training_stream.cache_clear()
    first, second = streams
    assert isinstance(first, FakeStream) and first is second, "memory that one step frees is the next one's"
    assert first.log == [("waits for", cuda.default), "synchronized"] * 3
    assert devices == 1 and cuda.current_stream() is cuda.default


async def _device(cuda: FakeCuda) -> int:
    assert threading.current_thread() is not threading.main_thread()
    return cuda.current_device()


def test_ranks_wait_longer_than_a_collective_may_take(warm_python: str) -> None:
    said = forked(warm_python, 2, str(TESTKIT / "ranked_waits.py"), "3", "60", "1")
    assert sorted(said.split("\n")) == ["", "rank 0: played 2", "rank 1: played 2"]


def test_a_first_rank_that_hangs_ends_the_wait_with_the_setting(warm_python: str) -> None:
    said = forked(warm_python, 2, str(TESTKIT / "ranked_waits.py"), "3", "1", "60")
    assert "rank 1: stopped: rank 1 lost the other ranks" in said and "ranks.wait_timeout_s=1" in said


def test_one_rank_waits_for_nobody() -> None:
    Ranks().meet()
    assert join_ranks() == Ranks()
    with pytest.raises(ConfigError, match=r"ranks\.wait_timeout_s must be above 0"):
        RanksConfig(wait_timeout_s=0)


class TwoRanks(Ranks):
    """The second of two ranks; the first has made ``other``."""

    other: Any = None

    def gathered(self, value: Any) -> list[Any]:
        return [type(self).other, value]


def test_what_all_ranks_made_is_in_order_of_rank_and_a_failure_of_one_stops_all() -> None:
    ranks = TwoRanks(rank=1, count=2)

    async def made() -> str:
        return "ours"

    async def failed() -> str:
        raise EnvError("the shop is closed")

    TwoRanks.other = ("", "theirs")
    assert asyncio.run(ranks.from_all(made)) == ["theirs", "ours"]
    with pytest.raises(EnvError, match="the shop is closed"):
        asyncio.run(ranks.from_all(failed))
    TwoRanks.other = ("EnvError: no more memory", None)
    with pytest.raises(RunStoppedError, match="rank 0 stopped: EnvError: no more memory"):
        asyncio.run(ranks.from_all(made))
