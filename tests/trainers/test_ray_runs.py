"""Runs on a Ray cluster of this machine: the same as without one, also when what they run on is killed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit import TESTKIT
from testkit.checkpoints import drop_checkpoint
from testkit.ray_runs import CLUSTER, NUM_STEPS, config, rl_rows, two_nodes, warm_workers
from testkit.run_records import num_retries, told, weights

from agentgym.rollout.in_flight import InFlight, SampledReport
from agentgym.trainers.config.pipeline import PipelineConfig
from agentgym.trainers.loop import TrainingLoop
from agentgym.trainers.phases.rollouts import Rollouts
from agentgym.trainers.reporting.clock import Clock
from agentgym.trainers.train import train
from agentgym.trainers.types import Metrics

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
SECRET = "a-token-that-no-log-may-hold"


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch, warm_python: str) -> None:
    """The environment's file imports another one beside it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTKIT.parent), os.environ.get("PYTHONPATH", "")]))
    warm_workers(monkeypatch, warm_python)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without Ray."""
    folder = tmp_path_factory.mktemp("alone")
    train(config(folder), folder / "run")
    return folder / "run"


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Path]]:
    """Files to make when a step of RL begins."""
    files: dict[int, Path] = {}
    plain = TrainingLoop.step

    async def ordering(loop: TrainingLoop, rollouts: Rollouts, clock: Clock) -> Metrics:
        if loop.state.step in files:
            files[loop.state.step].touch()
        return await plain(loop, rollouts, clock)

    monkeypatch.setattr(TrainingLoop, "step", ordering)
    yield files


def ray_processes() -> set[int]:
    """Of this user, on this machine, by what they are called."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if words.startswith(b"ray::") or b"/ray/" in words:
            found.add(int(folder.name))
    return found


def test_a_run_whose_worker_and_engine_are_killed_ends_with_the_same_episodes_and_weights(
    alone: Path, tmp_path: Path, at_step: dict[int, Path]
) -> None:
    at_step |= {0: tmp_path / "kill-worker", 1: tmp_path / "kill-engine"}
    train(config(tmp_path, CLUSTER), tmp_path / "run")
    assert {path.name for path in tmp_path.glob("*kill-*")} == {"done-kill-worker", "done-kill-engine"}
    assert told(tmp_path / "run") == told(alone)
    assert weights(tmp_path / "run") == weights(alone)
    last = rl_rows(tmp_path / "run")[-1]
    assert (last["env_workers/num_lost"], last["engine/num_lost"]) == (1, 1)
    assert last["engine/num_restarts"] == 1, "nothing could go on without it; of the workers there is another one"
    assert last["env_workers/num_hung"] == last["engine/num_hung"] == 0
    assert num_retries(tmp_path / "run", 0) >= 1, "the worker's episodes"
    assert num_retries(tmp_path / "run", 1) >= 1, "the engine's"
    assert num_retries(tmp_path / "run", 2) == 0


@pytest.fixture
def two_machines(warm_python: str) -> Iterator[tuple[Any, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        warm_workers(patch, warm_python)
        with two_nodes(4) as found:
            yield found


def test_a_run_that_loses_a_machine_ends_as_the_run_without_ray_and_can_be_resumed(
    alone: Path, tmp_path: Path, two_machines: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, node = two_machines
    plain = TrainingLoop.step
    alive: list[int] = []

    async def losing_a_machine(loop: TrainingLoop, rollouts: Rollouts, clock: Clock) -> Metrics:
        if loop.state.step == 1 and node in cluster.worker_nodes:
            alive.append(len([row for row in ray.nodes() if row["Alive"]]))
            cluster.remove_node(node, allow_graceful=False)
        return await plain(loop, rollouts, clock)

    monkeypatch.setattr(TrainingLoop, "step", losing_a_machine)
    settings = config(tmp_path, replace(CLUSTER, address=cluster.address, num_engines=2))
    settings = replace(settings, checkpoint_every=1)
    train(settings, tmp_path / "run")
    assert alive == [2]
    assert told(tmp_path / "run") == told(alone)
    assert weights(tmp_path / "run") == weights(alone)
    last = rl_rows(tmp_path / "run")[-1]
    assert (last["env_workers/num_lost"], last["engine/num_lost"]) == (1, 1), "one of each was on that machine"
    drop_checkpoint(tmp_path / "run", NUM_STEPS)
    (tmp_path / "run" / "model" / "model.safetensors").unlink()
    train(settings, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(alone)


def test_a_run_on_a_cluster_is_the_run_without_one_though_a_server_is_killed_and_leaves_no_process(
    alone: Path, tmp_path: Path, at_step: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGYM_SERVER_TOKEN", SECRET)
    shown = Path(tempfile.mkdtemp())  # pytest's own folders have names too long for Ray's sockets
    monkeypatch.setenv("RAY_TMPDIR", str(shown))
    before, reports = ray_processes(), list[SampledReport]()
    plain = InFlight.observe_report

    def noting(in_flight: InFlight, sampled: SampledReport) -> None:
        reports.append(sampled)
        plain(in_flight, sampled)

    monkeypatch.setattr(InFlight, "observe_report", noting)
    from agentgym.trainers.ray.fleet import Fleet

    meet = Fleet._meet

    def noticing(fleet: Fleet, member: Any, found: Any) -> None:
        meet(fleet, member, found)
        if fleet.stats.num_lost:
            (tmp_path / "noticed").touch()

    monkeypatch.setattr(Fleet, "_meet", noticing)
    # the process that the environment is in is a server's; small steps would end before the next check of its health
    at_step |= {1: tmp_path / "kill-worker", 2: tmp_path / "wait-noticed"}
    settings = config(tmp_path, replace(CLUSTER, num_env_servers=2, num_engines=2))
    train(replace(settings, pipeline=PipelineConfig(max_in_flight="auto")), tmp_path / "run")
    assert (tmp_path / "done-kill-worker").exists()
    assert any(row["trained_tokens"] for row in rl_rows(alone)), "else equal weights would say nothing"
    assert told(tmp_path / "run") == told(alone)
    assert weights(tmp_path / "run") == weights(alone)
    last = rl_rows(tmp_path / "run")[-1]
    assert (last["env_servers/num_lost"], last["env_workers/num_lost"], last["engine/num_lost"]) == (1, 0, 0)
    num_again = [num_retries(tmp_path / "run", step) for step in range(NUM_STEPS)]
    assert num_again[1] >= 1, "the episodes of the server"
    most = 4 * (NUM_STEPS * 3 * 4 + 2 * 6 + sum(num_again))  # turns of all groups, evaluations and retries
    assert 0 < sum(report.num_turns for report in reports) <= most, "workers report what they played, each turn once"
    assert all(report.generate_s > 0 and report.span_s > 0 for report in reports if report.num_turns)
    assert "url" not in (tmp_path / "run" / "config.json").read_text(encoding="utf-8").split('"engine"')[0]
    monkeypatch.undo()
    logs = [path for path in shown.rglob("*") if path.is_file()]
    assert logs and not [path for path in logs if SECRET.encode() in path.read_bytes()], "a log has the token"
    shutil.rmtree(shown)
    for _ in range(300):  # they are told to end, and take a moment
        if not ray_processes() - before and not serving_processes():
            break
        time.sleep(0.2)
    assert not ray_processes() - before and not serving_processes()


def serving_processes() -> list[int]:
    """Environment servers of Mortal."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"\0serve\0" in words and b"mortal_env.py" in words:
            found.append(int(folder.name))
    return found
