"""compose.yaml: what every container there promises, and that the names in it exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from agentgym.cli.main import app
from agentgym.trainers.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe

ROOT = Path(__file__).resolve().parent.parent
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]


def filled(text: str) -> str:
    """Variables replaced by their defaults."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_confined_and_watched(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "1000:1000"
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert set(service["profiles"]) <= {"cpu", "gpu"}
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert ("gpu" in name) == ("reservations" in service["deploy"]["resources"])


@pytest.mark.parametrize("name", [name for name in SERVICES if SERVICES[name]["command"][0] == "agentgym"])
def test_every_command_takes_the_options_it_is_given(name: str) -> None:
    command = [filled(word) for word in SERVICES[name]["command"]]
    verb = command[1]
    shown = re.sub(r"\s", "", CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "300"}).stdout)
    for word in command[2:]:
        if word.startswith("--"):
            assert word.partition("=")[0] in shown
    if verb == "train":
        values = [word for word in command[3:] if not word.startswith("--")]
        config = apply_overrides(load_recipe(command[2]), values)
        assert config.engine.urls == ("http://vllm:8000",)
        assert config.engine.weight_dir == "/weights"


def test_the_images_have_the_folders_that_are_copied() -> None:
    copied = re.findall(r"^COPY (\S+) /src", (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_compose_reads_it(profile: str) -> None:
    command = ["docker-compose", "--profile", profile, "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
