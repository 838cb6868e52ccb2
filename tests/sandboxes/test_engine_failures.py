"""A Docker engine that is down, lacks an image, has a full disk or is killed: infrastructure errors with advice.

The engine that is broken here is one of the tests' own, so that nobody else's suffers.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from testkit.runs import processes_with

from agentgym.errors import (
    InfrastructureError,
    SandboxDeadError,
    SandboxDiskFullError,
    SandboxImageError,
    SandboxRefusedError,
    SandboxUnavailableError,
)
from agentgym.sandbox import Limits
from agentgym.sandboxes.docker import DockerSandbox
from agentgym.sandboxes.docker_engine import docker_errors, engine, why_not
from agentgym.sandboxes.images import DEFAULT_IMAGE
from agentgym.sandboxes.ladder import open_sandbox
from agentgym.sandboxes.owner import descendants
from agentgym.sandboxes.pool import SandboxPool
from agentgym.sandboxes.reaper import ReapReport, reap_docker

pytestmark = pytest.mark.docker
_PATIENCE_S = 90.0


class OwnEngine:
    """A Docker engine with data of its own and no network."""

    def __init__(self, folder: Path, driver: str) -> None:
        self.folder, self.driver = folder, driver
        self.host = f"unix://{folder}/sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.folder / "pid").unlink(missing_ok=True)
        options = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        command = ["dockerd", *(f"--{name}={self.folder}/{place}" for name, place in options.items())]
        command += [f"--host={self.host}", "--bridge=none", "--iptables=false", f"--storage-driver={self.driver}"]
        deadline = time.monotonic() + _PATIENCE_S
        while "there is no image" not in why_not("none"):
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            if self.process is None or self.process.poll() is not None:  # on a busy disk its first start may give up
                with open(self.folder / "log", "ab") as log:
                    self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            time.sleep(0.2)

    def kill(self) -> None:
        assert self.process is not None
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with suppress(ProcessLookupError):  # a child that has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        """End it, and whatever a killed one left: processes that hold its folder's name, mounts in its folder."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(_PATIENCE_S)
        for line in processes_with(str(self.folder)):
            pid = int(line.split()[0])
            for one in (*descendants(pid), pid):
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((one for one in mounts if one.startswith(str(self.folder))), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)


@pytest.fixture
def own_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("starting an engine needs root and dockerd")
    folder = Path(tempfile.mkdtemp(prefix="agentgym-engine-", dir="/tmp"))
    size_mb = getattr(request, "param", 0)
    if size_mb:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)], check=True)
    made = OwnEngine(folder, "vfs" if size_mb else "overlay2")
    monkeypatch.setenv("DOCKER_HOST", made.host)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def saved_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The base image's files, from the engine that has it."""
    path = tmp_path_factory.mktemp("image") / "root.tar"
    container = engine().containers.create(DEFAULT_IMAGE, "true")
    try:
        with open(path, "wb") as file:
            file.writelines(container.export())
    finally:
        container.remove()
    yield path
    path.unlink()


def load(path: Path) -> None:
    repository, tag = DEFAULT_IMAGE.split(":")
    with docker_errors("load the image"):
        engine().api.import_image_from_file(str(path), repository=repository, tag=tag)


def test_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SandboxUnavailableError, match=r"/nowhere/docker\.sock \(No such file.*systemctl start docker"):
        DockerSandbox()
    assert "dockerd" in why_not(DEFAULT_IMAGE)
    with pytest.raises(SandboxRefusedError, match="no Docker engine answers"):
        open_sandbox(require={"network", "filesystem", "user"}, limits=Limits(has_network=True))


def test_no_image() -> None:
    with pytest.raises(SandboxImageError, match="no image 'agentgym-none:7' here; `agentgym sandbox build`"):
        DockerSandbox("agentgym-none:7")


def test_an_image_without_python() -> None:
    import io
    import tarfile

    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    engine().api.import_image_from_data(tar.getvalue(), repository="agentgym-test-empty", tag="1")
    try:
        with pytest.raises(SandboxImageError, match="has no python3"):
            DockerSandbox("agentgym-test-empty:1")
        assert [
            one.name
            for one in engine().containers.list(all=True, ignore_removed=True)
            if "agentgym-test-empty" in str(one.image)
        ] == []
    finally:
        engine().images.remove("agentgym-test-empty:1", force=True)


def test_killed_in_the_middle(saved_image: Path, own_engine: OwnEngine) -> None:
    load(saved_image)
    with SandboxPool(DockerSandbox, num_ready=1, max_open=2) as pool:
        lent = pool.acquire()
        errors: list[InfrastructureError] = []

        def run() -> None:
            try:
                lent.exec("sleep 25")
            except InfrastructureError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.5)
        own_engine.kill()
        thread.join(20)
        assert [type(error) for error in errors] == [SandboxDeadError]
        assert "no Docker engine answers" in str(errors[0])
        assert not lent.alive()
        lent.close()
        with pytest.raises(SandboxUnavailableError):
            pool.acquire()
        own_engine.start()
        with pool.acquire() as after:  # the pool gets over it
            assert after.exec("echo fine").stdout == "fine\n"
    reap_docker(ReapReport())
    assert engine().containers.list(all=True, ignore_removed=True) == []


@pytest.mark.parametrize("own_engine", [64], indirect=True)
def test_full_disk(saved_image: Path, own_engine: OwnEngine) -> None:
    with pytest.raises(SandboxDiskFullError, match="no space left where Docker keeps its data"):
        load(saved_image)
