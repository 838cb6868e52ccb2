"""Runs whose ranks are Ray actors: the same as under torchrun, also when ranks, machines and jobs are lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit import TESTKIT
from testkit.killed_runs import SCRIPT
from testkit.ranks import forked
from testkit.ray_runs import CLUSTER, SMALL, config, give, note_ranks, rl_rows, two_nodes, warm_workers
from testkit.run_records import told, weights

from agentgym.errors import ConfigError, InfrastructureError, RunStoppedError, UsageError
from agentgym.ports import free_port
from agentgym.rollout.folder_lock import LOCK_NAME
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.config.overrides import save_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.train import train

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

from agentgym.trainers.ray_ranks import trainer  # noqa: E402

RANKS = replace(CLUSTER, num_trainer_ranks=2, num_env_workers=1)
ROOM = 4
"""Processors for two ranks, an env worker and an engine."""


def ranked(orders: Path, cluster: ClusterConfig = RANKS) -> TrainConfig:
    return replace(config(orders, cluster), checkpoint_every=1)


def set_up_workers(patch: pytest.MonkeyPatch, warm_python: str) -> None:
    """Let workers start warm, and import what is beside the environment's file, which it imports."""
    warm_workers(patch, warm_python)
    patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTKIT.parent), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch, warm_python: str) -> None:
    set_up_workers(monkeypatch, warm_python)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    """A run of two ranks, started as torchrun starts them, that has learned from demonstrations and nothing else."""
    run_dir = tmp_path_factory.mktemp("begun") / "run"
    run_dir.mkdir()
    run_without_ray(warm_python, replace(ranked(run_dir.parent, ClusterConfig()), num_steps=0), run_dir)
    return run_dir


@pytest.fixture(scope="module")
def without_ray(begun: Path, tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    """The same run with its steps of RL, whose episodes the first rank plays."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(begun, run_dir)
    run_without_ray(warm_python, ranked(run_dir.parent, ClusterConfig()), run_dir)
    return run_dir


def run_without_ray(warm_python: str, settings: TrainConfig, run_dir: Path) -> None:
    save_config(replace(settings, ranks=replace(settings.ranks, rollouts="first")), run_dir / "config.json")
    forked(warm_python, 2, "-c", SCRIPT, str(run_dir))


@pytest.fixture
def train_on(begun: Path, tmp_path: Path) -> Callable[..., None]:
    """Trains the run that has begun, or resumes it, on a cluster."""

    def on(cluster: ClusterConfig = RANKS) -> None:
        run_dir, settings = tmp_path / "run", ranked(tmp_path, cluster)
        if not run_dir.exists():
            shutil.copytree(begun, run_dir)
            save_config(settings, run_dir / "config.json")
        train(settings, run_dir, resume=True)

    return on


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets episodes of the second step obey an order; the ranks' process numbers are where orders are looked for."""
    note_ranks(monkeypatch, tmp_path)
    return lambda name: give(tmp_path, name, 1)


def whenever(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Let the command that started a run do something each time it looks at its ranks."""
    plain = trainer._Speech.show

    def show(speech: trainer._Speech, timeout_s: float = 0.0) -> None:
        work()
        plain(speech, timeout_s)

    monkeypatch.setattr(trainer._Speech, "show", show)


def check_same(run_dir: Path, expected: Path, num_restarts: Sequence[int]) -> None:
    assert told(run_dir) == told(expected)
    assert weights(run_dir) == weights(expected)
    assert [row["ranks/num_restarts"] for row in rl_rows(run_dir)] == list(num_restarts)


def test_ranks_that_ray_places_and_that_are_killed_make_the_run_of_torchruns(
    without_ray: Path, tmp_path: Path, orders: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    orders("kill-rank-1")
    give(tmp_path, "kill-rank-0", 2)
    result = train(ranked(tmp_path), tmp_path / "run")
    assert (tmp_path / "done-kill-rank-1").exists() and (tmp_path / "done-kill-rank-0").exists()
    assert any(row["grad_norm"] for row in rl_rows(without_ray)), "else equal weights would say nothing"
    check_same(tmp_path / "run", without_ray, [0, 1, 2])
    assert result.run_dir == str(tmp_path / "run") and result.steps == 3
    said = capsys.readouterr().err
    assert (
        "2 ranks: each plays 1/2 of a step's groups on the Ray cluster" in said
        and "rl 3/3" in said
        and "success after RL" in said
    )
    lines = [line for line in said.splitlines() if "of 3 from the last checkpoint" in line]
    assert len(lines) == 2 and lines[0].startswith("trainer rank 1 (process ")
    assert lines[1].startswith("trainer rank 0 (process ") and "; restart 2 of 3 from" in lines[1]
    assert not ray.is_initialized()


def test_ranks_of_torchrun_play_on_a_cluster_together(
    begun: Path, without_ray: Path, tmp_path: Path, warm_python: str
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(begun, run_dir)
    save_config(ranked(tmp_path, replace(RANKS, num_trainer_ranks=0)), run_dir / "config.json")
    forked(warm_python, 2, "-c", SCRIPT, str(run_dir))
    assert told(run_dir) == told(without_ray) and weights(run_dir) == weights(without_ray)


def test_a_run_that_is_interrupted_and_one_without_restarts_left_can_be_resumed(
    without_ray: Path,
    tmp_path: Path,
    orders: Callable[[str], None],
    train_on: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders("wait-for-nothing")
    give(tmp_path, "kill-rank-1", 2)
    none_left = replace(RANKS, max_restarts=0)

    def interrupt() -> None:
        if (tmp_path / "done-wait-for-nothing").exists():
            (tmp_path / "done-wait-for-nothing").unlink()
            raise KeyboardInterrupt

    whenever(monkeypatch, interrupt)
    ended: list[Any] = []
    wait = ray.wait

    def waiting(refs: Any, *, timeout: float) -> Any:
        found = wait(refs, timeout=timeout)
        if timeout == trainer._STOP_S:
            ended.extend(found[0])
        return found

    monkeypatch.setattr(ray, "wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        train_on(none_left)
    assert len(ended) == 1, "the first rank ended by itself"
    assert not (tmp_path / "done-kill-rank-1").exists()
    with pytest.raises(
        RunStoppedError, match=r"is lost: .* \(cluster.max_restarts=0\); to go on: agentgym train --resume .*run$"
    ):
        train_on(none_left)
    train_on(none_left)
    check_same(tmp_path / "run", without_ray, [0, 0, 0])


@pytest.fixture(scope="module")
def two_machines(warm_python: str) -> Iterator[tuple[Any, Any]]:
    """Two machines, the first one with two GPUs by name; the last test of them takes one away."""
    with pytest.MonkeyPatch.context() as patch:
        set_up_workers(patch, warm_python)
        with two_nodes(ROOM, num_gpus=2) as found:
            yield found


def test_what_ranks_on_a_cluster_cannot_do_is_said(
    tmp_path: Path, two_machines: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ = two_machines
    here = replace(RANKS, address=cluster.address, num_trainer_ranks=1)
    crowded = replace(here, num_trainer_ranks=ROOM + 1, rank_placement="strict_pack")
    with pytest.raises(ConfigError, match=r"had no room for 5 trainer ranks .*rank_placement=strict_pack"):
        train(ranked(tmp_path, replace(crowded, start_timeout_s=2)), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"too little for 9 trainer ranks, .*CPU 8 of 11"):
        train(ranked(tmp_path, replace(here, num_trainer_ranks=9)), tmp_path / "run")
    absent = replace(ranked(tmp_path, here), model=replace(config(tmp_path).model, path=str(tmp_path / "absent")))
    with pytest.raises(UsageError, match="absent"):
        train(absent, tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").touch()
    with pytest.raises(InfrastructureError, match=r"trainer rank 0 failed: .*Exists"):  # and nothing starts again
        train(ranked(tmp_path, here), tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setattr(Path, "touch", lambda path: None)
    with pytest.raises(ConfigError, match=rf"trainer rank 0 \(process .*\) does not see {tmp_path}/run: .*--run-dir"):
        train(ranked(tmp_path, here), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_each_rank_has_a_gpu_of_its_own(tmp_path: Path, two_machines: tuple[Any, Any]) -> None:
    cluster = replace(RANKS, gpus_per_rank=1)
    ray.init(address=two_machines[0].address, log_to_driver=False)
    try:
        with trainer._reserved(cluster) as (group, bundles):
            handles = [trainer._actor(cluster, group, bundle, rank) for rank, bundle in enumerate(bundles)]
            places = trainer._places(handles, tmp_path / "run", cluster)
    finally:
        ray.shutdown()
    assert {place.process.partition(", ")[2] for place in places} == {"GPU 0", "GPU 1"}
    assert len({place.address for place in places}) == 2 and all(place.sees_folder for place in places)
    assert not (tmp_path / "run").exists()


def test_a_run_that_loses_the_machine_of_a_rank_ends_the_same(
    without_ray: Path,
    tmp_path: Path,
    two_machines: tuple[Any, Any],
    orders: Callable[[str], None],
    train_on: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, node = two_machines
    orders("wait-node-lost")
    nodes: list[set[str]] = []

    def lose_a_machine() -> None:
        if (tmp_path / "done-wait-node-lost").exists() and node in cluster.worker_nodes:
            groups = ray.util.placement_group_table().values()
            nodes.extend(set(group["bundles_to_node_id"].values()) for group in groups if group["state"] == "CREATED")
            cluster.remove_node(node, allow_graceful=False)
            (tmp_path / "node-lost").touch()

    whenever(monkeypatch, lose_a_machine)
    train_on(replace(RANKS, address=cluster.address, rank_placement="spread"))
    assert [len(of_ranks) for of_ranks in nodes] == [2], "a rank on each"
    # processes of a lost node end when they notice, and may finish the step before that
    noticed = [row["ranks/num_restarts"] for row in rl_rows(tmp_path / "run")][1]
    assert noticed in (0, 1)
    check_same(tmp_path / "run", without_ray, [0, noticed, 1])


def test_a_rank_killed_with_the_lock_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_config: TrainConfig, run_dir: Path, *_: object) -> None:
        run_dir.mkdir()
        (run_dir / LOCK_NAME).touch()
        raise UsageError("rank 1 says no, and rank 0 is killed")

    monkeypatch.setattr(trainer, "connect", lambda _: False)
    monkeypatch.setattr(trainer, "check_resources", lambda *_: None)
    monkeypatch.setattr(trainer, "_train_once", refused)
    with pytest.raises(UsageError, match="rank 1 says no"):
        train(ranked(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_job_on_two_machines_is_killed_and_resumed(without_ray: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp_cors", reason="jobs need Ray's dashboard: pip install 'ray[default]'")
    from ray._private.utils import write_ray_address

    run_dir, port = tmp_path / "run", free_port()
    ranks = {"num_trainer_ranks": 2, "rank_placement": "spread", "num_env_workers": 1, "start_timeout_s": 600}
    cluster = [f"cluster.{name}={value}" for name, value in {"address": "auto", **ranks}.items()]
    settings = [*SMALL, f"env.kwargs.orders={tmp_path}", "checkpoint_every=1", *cluster]
    give(tmp_path, "wait-killed", 1)
    give(tmp_path, "wait-stopped", 2)
    with two_nodes(ROOM, include_dashboard=True, dashboard_host="127.0.0.1", dashboard_port=port) as (nodes, _):
        write_ray_address(nodes.address)  # or else a job joins any cluster of which it finds a process
        jobs = Jobs(f"http://127.0.0.1:{port}")
        jobs.submit("first", "tiny", *settings, "--run-dir", str(run_dir))
        until((tmp_path / "done-wait-killed").exists)
        actors = jobs.actors()
        assert set(actors) == {"rank 0", "rank 1", "engine 0", "env worker 0"}
        os.kill(actors["rank 1"], signal.SIGKILL)
        until((tmp_path / "done-wait-stopped").exists)
        jobs.stop("first")
        said = jobs.logs("first")
        assert "restart 1 of 3 from the last checkpoint" in said
        assert f"interrupted; to go on: agentgym train --resume {run_dir}" in said
        (tmp_path / "stopped").touch()
        write_ray_address(nodes.address)
        jobs.submit("second", "--resume", str(run_dir))
        until(lambda: jobs.status("second") == "SUCCEEDED")
        assert "resumed after rl step 2" in jobs.logs("second")
    check_same(run_dir, without_ray, [0, 1, 0])


class Jobs:
    """Jobs of a cluster: submitted by Ray's command, and otherwise seen from here, since the command starts slowly."""

    def __init__(self, address: str) -> None:
        from ray.job_submission import JobSubmissionClient

        self._address = address

        def answers() -> bool:
            self._client = JobSubmissionClient(address)
            return True

        until(answers)  # Ray's dashboard takes a moment

    def submit(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "agentgym", "train", *arguments]
        program = "from ray.scripts.scripts import main; main()"
        words = ["job", "submit", "--address", self._address, "--no-wait", "--submission-id", name, "--", *command]
        said: list[str] = []

        def taken() -> bool:
            done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
            said.append(done.stdout + done.stderr)
            return "No available agent" not in said[-1]  # Ray asks to try again while its agents start

        until(taken)
        assert "submitted successfully" in said[-1], said[-1]

    def stop(self, name: str) -> None:
        self._client.stop_job(name)
        until(lambda: self.status(name) == "STOPPED")

    def status(self, name: str) -> str:
        return str(self._client.get_job_status(name).value)

    def logs(self, name: str) -> str:
        return str(self._client.get_job_logs(name))

    def actors(self) -> dict[str, int]:
        """Return the processes of the runs' actors that Ray's dashboard shows, by their names."""
        from ray.util.state import list_actors

        found = list_actors(address=self._address, filters=[("state", "=", "ALIVE")])
        return {row.name: row.pid for row in found if not row.name.startswith("_ray_internal")}


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that takes a while, five minutes at most."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        with suppress(OSError):
            if is_so():
                return
        time.sleep(0.1)
    raise AssertionError("it did not happen")
