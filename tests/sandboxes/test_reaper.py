"""What a killed run leaves is removed at the next start, and nothing else is."""

import dataclasses
import glob
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.runs import BusyRun, processes_with

from agentgym.sandboxes import namespaces
from agentgym.sandboxes.owner import LEASE_S, Owner, current_owner, descendants, start_ticks
from agentgym.sandboxes.reaper import ReapReport, reap_docker, reap_host
from agentgym.sandboxes.run_folder import run_folder, state_folder

NO_NAMESPACES = namespaces.why_not()
HOST_BACKENDS = [
    "process",
    pytest.param("namespaces", marks=pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)),
]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path("/tmp") / f"agentgym-test-{tmp_path.name}-{os.getpid()}"  # tmp_path is closed to other users
    monkeypatch.setenv("AGENTGYM_STATE", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def gone_processes(marker: str) -> list[str]:
    """What still runs a moment after a worker lost its line to the host."""
    deadline = time.monotonic() + 10
    while (
        found := [line for line in processes_with(marker) if "-c" not in line.split()]
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_a_killed_run_leaves_nothing_and_another_keeps_its_own(backend: str, state: Path) -> None:
    killed, other = BusyRun(backend, "31.4159", state), BusyRun(backend, "27.1828", state)
    try:
        killed.kill()
        assert gone_processes("31.4159") == []  # before anything is reaped: the worker sees that its line has ended
        report = ReapReport()
        reap_host(report)
        assert report.folders == [str(state / killed.run)]
        assert not (state / killed.run).exists()
        assert [path for one in killed.ids for path in glob.glob(f"/sys/fs/cgroup/**/{one}", recursive=True)] == []
        assert [line for one in killed.ids for line in gone_processes(one)] == []
        assert other.is_well()
        assert len(processes_with("27.1828")) > 2
    finally:
        other.end()
    assert gone_processes("27.1828") == []
    assert not (state / other.run).exists()


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_workers_that_hang_are_ended_by_the_reaper(backend: str, state: Path) -> None:
    run = BusyRun(backend, "16.1803", state)
    below = descendants(run.process.pid)
    for pid in below:
        os.kill(pid, signal.SIGSTOP)  # so that they do not see that the line has ended
    run.kill()
    report = ReapReport()
    reap_host(report)
    assert len(report.processes) >= 2
    assert gone_processes("16.1803") == []
    assert [line for one in run.ids for line in processes_with(one)] == []  # the reaper waits for what it kills
    assert not (state / run.run).exists()


@pytest.mark.docker
def test_a_killed_run_leaves_no_container(state: Path) -> None:
    from agentgym.sandboxes.docker_engine import engine

    def containers(run: str) -> list[str]:
        return [
            one.name
            for one in engine().containers.list(all=True, ignore_removed=True, filters={"label": f"agentgym.run={run}"})
        ]

    killed, other = BusyRun("docker", "31.41592", state), BusyRun("docker", "27.18281", state)
    try:
        assert sorted(containers(killed.run)) == sorted(killed.ids)
        volumes = {one.name for one in engine().volumes.list()}
        killed.kill()
        reap_docker(ReapReport())
        deadline = time.monotonic() + 15  # those that the engine is removing already
        while containers(killed.run) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert containers(killed.run) == []
        assert gone_processes("31.41592") == []
        assert {one.name for one in engine().volumes.list()} <= volumes
        assert sorted(containers(other.run)) == sorted(other.ids)
        assert other.is_well()
    finally:
        other.end()
    assert containers(other.run) == []


@pytest.mark.docker
def test_volumes_and_stopped_containers_of_the_dead_go_and_all_others_stay() -> None:
    from agentgym.sandboxes.docker_engine import engine
    from agentgym.sandboxes.images import DEFAULT_IMAGE

    dead = dataclasses.replace(current_owner(), start_ticks="1")
    client = engine()
    container = client.containers.create(DEFAULT_IMAGE, "true", labels=dead.labels(), volumes=["/data"])
    theirs = client.volumes.create(labels=dead.labels())
    ours = client.volumes.create(labels=current_owner().labels())
    strangers = client.volumes.create()
    stranger = client.containers.create(DEFAULT_IMAGE, "true", labels={"agentgym.project": "other"})
    try:
        anonymous = {mount["Name"] for mount in client.api.inspect_container(container.id)["Mounts"]}
        assert len(anonymous) == 1
        report = ReapReport()
        reap_docker(report)
        assert container.name in report.containers and theirs.name in report.volumes
        left = {one.name for one in client.volumes.list()}
        assert {ours.name, strangers.name} <= left and not left & {theirs.name, *anonymous}
        assert stranger.id in {one.id for one in client.containers.list(all=True, ignore_removed=True)}
    finally:
        ours.remove()
        strangers.remove()
        stranger.remove()


@pytest.mark.docker
def test_the_volumes_of_an_image_lie_in_memory_and_are_emptied() -> None:
    from agentgym.sandboxes.docker import DockerSandbox
    from agentgym.sandboxes.docker_engine import engine
    from agentgym.sandboxes.images import DEFAULT_IMAGE

    client = engine()
    base = client.containers.create(DEFAULT_IMAGE, "true")
    base.commit("agentgym-test-volume", "1", changes="VOLUME /data")
    base.remove()
    before = {one.name for one in client.volumes.list()}
    try:
        with DockerSandbox("agentgym-test-volume:1") as sandbox:
            assert {one.name for one in client.volumes.list()} == before
            assert sandbox.exec("echo x > /data/file && stat -f -c %T /data").stdout == "tmpfs\n"
            assert not sandbox.exec("head -c 80000000 /dev/zero > /data/a; head -c 80000000 /dev/zero > /data/b").ok
            sandbox.reset()
            assert sandbox.exec("ls -A /data").stdout == ""
    finally:
        client.images.remove("agentgym-test-volume:1", force=True)


def test_an_owner_is_told_from_a_later_process_of_the_same_number() -> None:
    owner = current_owner()
    assert owner.state() == "alive"
    assert dataclasses.replace(owner, start_ticks="1").state() == "dead"
    assert dataclasses.replace(owner, pid=str(2**22 + 1)).state() == "dead"
    assert dataclasses.replace(owner, boot="another").state() == "dead"
    assert Owner.of_labels(owner.labels()) == owner


def test_an_owner_out_of_sight_keeps_its_own_until_the_lease_ends() -> None:
    now = time.time()
    for out_of_sight in ({"pid_namespace": "pid:[1]"}, {"boot": "another", "machine": "another"}):
        owner = dataclasses.replace(current_owner(), **out_of_sight)
        assert owner.state() == "unknown"
        assert not dataclasses.replace(owner, lease_until_s=str(now + 60)).is_gone()
        assert dataclasses.replace(owner, lease_until_s=str(now - 60)).is_gone()
    assert not dataclasses.replace(current_owner(), lease_until_s=str(now - 60)).is_gone()  # it lives
    assert not Owner.of_labels({}).is_gone()
    assert LEASE_S > 3600


def test_a_process_that_has_ended_has_no_start() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(pid) == ""  # still there, as a zombie
    os.waitpid(pid, 0)
    assert start_ticks(pid) == ""


def test_a_folder_that_is_half_made_or_strange_stays(state: Path) -> None:
    run_folder()
    strange, half = state_folder() / "strange", state_folder() / ".new-abc"
    strange.mkdir()
    half.mkdir()
    report = ReapReport()
    reap_host(report)
    assert (report.num_removed, report.num_kept) == (0, 1)
    assert strange.is_dir() and half.is_dir() and run_folder().is_dir()
