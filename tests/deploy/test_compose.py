"""The CPU profile of compose.yaml, started in a real Docker engine: it trains three steps, and leaves nothing behind.

``make test-compose`` makes the images and runs this.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentgym.ports import free_port
from agentgym.rollout.record import read_json_lines, read_records, record_path

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(
        not os.environ.get("AGENTGYM_IMAGES"), reason="needs the images of compose.yaml: make test-compose"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
PROFILE = ("search", "trainer-cpu", "tensorboard")
NUM_STEPS = 3
START_TIMEOUT_S = TRAIN_TIMEOUT_S = 600.0
"""What is tested is what happens, not when: the machine may be busy with other things."""


def run(*words: str, env: dict[str, str] | None = None, timeout_s: float = 120.0) -> str:
    """A command's output, once it has ended well."""
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace"
    )
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def compose_command() -> tuple[str, ...]:
    """Compose as Docker's plugin, else as a program of its own; one of them must be there."""
    plugin = subprocess.run(("docker", "compose", "version"), capture_output=True, check=False)
    if plugin.returncode == 0:
        return ("docker", "compose")
    assert shutil.which("docker-compose"), "Docker Compose is not installed: apt-get install docker-compose"
    return ("docker-compose",)


@dataclass(frozen=True)
class Project:
    """The profile's containers, under a name of their own."""

    name: str
    tensorboard_port: int

    def compose(self, *words: str, timeout_s: float = 120.0) -> str:
        ours = {
            "AGENTGYM_TENSORBOARD_PORT": str(self.tensorboard_port),
            "AGENTGYM_CPUS": str(min(2, os.cpu_count() or 1)),
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENTGYM_")}
        command = (*compose_command(), "--project-name", self.name, "--profile", "cpu", *words)
        return run(*command, env=inherited | ours, timeout_s=timeout_s)

    def start(self) -> None:
        """Start all; returns once the trainer, which waits for the search server's health, has been started."""
        try:
            self.compose("up", "--detach", timeout_s=START_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.compose('logs', '--tail', '30')}") from None

    def left(self, kind: str) -> list[str]:
        """Ids of this project's containers, volumes or networks."""
        shown = ("--all",) if kind == "container" else ()
        label = f"label=com.docker.compose.project={self.name}"
        return run("docker", kind, "ls", *shown, "--quiet", "--filter", label).split()

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine says of a service's container."""
        (container,) = (
            found for found in self.inspected() if found["Config"]["Labels"]["com.docker.compose.service"] == service
        )
        return container

    def inspected(self) -> list[dict[str, Any]]:
        """What the engine says of all containers."""
        found: list[dict[str, Any]] = json.loads(run("docker", "inspect", *self.left("container")))
        return found


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    made = Project(f"agentgym-test-{os.getpid()}", free_port())
    try:
        made.compose(
            "up", "--detach", "--no-build", timeout_s=START_TIMEOUT_S
        )  # returns when the search server is well
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "5", timeout_s=300.0)
        assert {kind: made.left(kind) for kind in ("container", "volume", "network")} == {
            "container": [],
            "volume": [],
            "network": [],
        }


@pytest.fixture(scope="module")
def run_folder(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the trainer, which has ended well, out of its volume."""
    trainer = project.inspect("trainer-cpu")["Id"]
    code = run("docker", "wait", trainer, timeout_s=TRAIN_TIMEOUT_S).strip()
    assert code == "0", f"the trainer ended with {code}\n{project.compose('logs', 'trainer-cpu', 'search')}"
    folder = tmp_path_factory.mktemp("runs")
    run("docker", "cp", f"{project.inspect('tensorboard')['Id']}:/runs/compose", str(folder))
    return folder / "compose"


def until(is_so: Callable[[], bool], said: Callable[[], str]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, said()
        time.sleep(1.0)


def test_every_container_is_started_as_the_file_promises(project: Project) -> None:
    containers = project.inspected()
    assert {found["Config"]["Labels"]["com.docker.compose.service"] for found in containers} == set(PROFILE)
    for found in containers:
        host = found["HostConfig"]
        assert found["Config"]["User"] == "1000:1000"
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"]
        assert host["Memory"] > 0 and host["NanoCpus"] > 0 and host["PidsLimit"] > 0
    (inside,) = (
        network
        for network in json.loads(run("docker", "network", "inspect", *project.left("network")))
        if network["Name"].endswith("_inside")
    )
    assert inside["Internal"]
    for service in ("search", "trainer-cpu"):
        assert list(project.inspect(service)["NetworkSettings"]["Networks"]) == [inside["Name"]]


@pytest.mark.parametrize("service", ["search", "tensorboard"])
def test_servers_become_healthy(project: Project, service: str) -> None:
    until(
        lambda: project.inspect(service)["State"]["Health"]["Status"] == "healthy",
        lambda: f"{project.inspect(service)['State']}\n{project.compose('logs', service)}",
    )


def test_the_trainer_trains_three_steps(run_folder: Path) -> None:
    steps = [row for row in read_json_lines(run_folder / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert all(row["trained_tokens"] and math.isfinite(row["loss"]) for row in steps)
    assert any(row["loss"] != 0 for row in steps)
    assert (run_folder / "model" / "model.safetensors").is_file()


def test_its_episodes_ask_the_search_server(run_folder: Path) -> None:
    episodes = [
        episode
        for step in range(NUM_STEPS)
        for record in read_records(record_path(run_folder, step))
        for episode in record.group.trajectories
    ]
    titles = [json.loads(line)["title"] for line in (ROOT / "deploy/example/corpus.jsonl").read_text().splitlines()]
    found = [
        reply.text
        for episode in episodes
        for turn in episode.turns
        for reply in turn.replies
        if reply.result is not None and reply.result.name == "search" and reply.result.error_type is None
    ]
    assert any(title in text for text in found for title in titles)
    assert all(episode.error is None for episode in episodes)


def test_the_run_belongs_to_the_user_and_its_health_check_sees_it(project: Project, run_folder: Path) -> None:
    tensorboard, check = project.inspect("tensorboard")["Id"], project.inspect("trainer-cpu")["Config"]["Healthcheck"]
    owners = run("docker", "exec", tensorboard, "find", "/runs", "-printf", "%U:%G\\n").split()
    assert set(owners) == {"1000:1000"}
    assert check["Test"][0] == "CMD-SHELL"
    run("docker", "exec", tensorboard, "sh", "-c", check["Test"][1])  # the trainer itself has ended


def test_tensorboard_shows_the_run_on_this_machine(project: Project, run_folder: Path) -> None:
    def runs() -> list[str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{project.tensorboard_port}/data/runs", timeout=10) as answer:
                found: list[str] = json.load(answer)
                return found
        except (urllib.error.URLError, OSError):
            return []

    until(lambda: "compose/tensorboard" in runs(), lambda: f"{runs()}\n{project.compose('logs', 'tensorboard')}")
