"""What ``agentgym new`` writes is a package: installed, it is listed, checked, evaluated, trained and served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit.env_servers import EnvServer

import agentgym


def test_new_refuses_a_folder_that_is_there(run: Callable[..., Any], tmp_path: Path) -> None:
    run("new", "my-world")
    readme = tmp_path / "my-world" / "README.md"
    readme.write_text("mine")
    assert "my-world already exists" in run("new", "MyWorld").assert_one_line_error()
    assert readme.read_text() == "mine"


@pytest.mark.slow
def test_the_installed_package(run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = run("new", "my-world", "--json").json
    assert value["id"] == "MyWorld-v0" and "my-world/my_world/tasks.json" in value["files"]
    site = tmp_path / "site"
    install = ["install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(site), "./my-world"]
    subprocess.run([sys.executable, "-m", "pip", *install], cwd=tmp_path, check=True, capture_output=True)
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))

    def agentgym_json(*arguments: str) -> object:
        command = [sys.executable, "-m", "agentgym", *arguments, "--json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    listed = agentgym_json("list")
    assert "MyWorld-v0" in json.dumps(listed)
    played = agentgym_json("eval", "MyWorld-v0", "--policy", "oracle", "--episodes", "6")
    assert isinstance(played, dict) and played["success"] == 1.0
    small = ("group.num_envs=2", "group.group_size=2", "groups_per_step=1", "sft.num_demos=16", "eval.num_episodes=2")
    trained = agentgym_json("train", "tiny", "env.id=MyWorld-v0", "num_steps=1", *small)
    assert isinstance(trained, dict) and "success_after" in trained
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my-world"]
    tested = subprocess.run(tests, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    server = EnvServer("MyWorld-v0")
    try:
        env = agentgym.make("MyWorld-v0", url=server.url)
        observation, _ = env.reset(seed=0, options={"split": "test", "task": 0})
        assert observation[0].text.startswith("I think of a number")
        assert env.step("guess: 13")[4]["success"]
        env.close()
    finally:
        server.kill()
