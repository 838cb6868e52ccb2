"""compose.yaml as a file: what every container there promises, and that the names in it exist."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from agentgym.cli.main import app
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy" / "example"
PROFILES = ("cpu", "cpu-vllm", "gpu")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]


def filled(text: str) -> str:
    """Variables replaced by their defaults."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def words_of(name: str) -> list[str]:
    """A service's command."""
    command = SERVICES[name]["command"]
    return shlex.split(filled(command)) if isinstance(command, str) else [filled(word) for word in command]


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_confined_and_watched(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "1000:1000"
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["pids_limit"] and service["cpus"] and service["mem_limit"]
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert set(service["profiles"]) <= set(PROFILES)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert ("gpu" in name) == ("deploy" in service)


@pytest.mark.parametrize("name", [name for name in SERVICES if words_of(name)[0] == "agentgym"])
def test_every_command_takes_the_options_it_is_given(name: str) -> None:
    verb, *words = words_of(name)[1:]
    shown = re.sub(r"\s", "", CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "300"}).stdout)
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in shown
    if verb == "train":
        values = [word for word in words[1:] if not word.startswith("--")]
        config = apply_overrides(load_recipe(words[0]), values)
        assert config.env.kwargs["retriever"] == "http://search:8001"
        if name != "trainer-cpu":
            assert config.engine.urls == ("http://vllm:8000",)
            assert config.engine.weight_dir == "/weights"


def test_the_example_is_what_its_script_makes(tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLE / "make.py"))["make"](tmp_path)
    for name in ("corpus.jsonl", "questions.json"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes()


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
@pytest.mark.parametrize("profile", PROFILES)
def test_compose_reads_it(profile: str) -> None:
    command = ["docker-compose", "--profile", profile, "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
