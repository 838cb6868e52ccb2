"""The scripts of examples/ run as a reader runs them, and the one that trains on one page learns."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from testkit.fake_openai import FakeOpenAI, completion

FOLDER = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(warm_run: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """Runs a script in an empty folder, and returns what it prints on standard output."""
    return lambda name, *arguments: warm_run(FOLDER / f"{name}.py", *arguments, cwd=tmp_path)


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[FakeOpenAI] = []

    def start(play: Any) -> FakeOpenAI:
        servers.append(FakeOpenAI(play))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_every_script_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in FOLDER.glob("*.py") if f'"{path.stem}"' not in source] == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_mistyped_argument_is_refused_before_anything_runs(path: Path, warm_commands: Path, tmp_path: Path) -> None:
    if path.stem == "train_with_trl":
        pytest.importorskip("trl")
    needed = ["openai:http://127.0.0.1:9/v1"] if path.stem in {"evaluate_api_model", "judged_reward"} else []
    command = [str(warm_commands / "python"), str(path), *needed, "--stesp", "3"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 2 and "unrecognized arguments: --stesp 3" in ran.stderr, ran.stderr[-3000:]
    assert ran.stdout == "" and list(tmp_path.iterdir()) == []


def test_the_page_is_one_that_can_be_read() -> None:
    assert len((FOLDER / "train_grpo.py").read_text(encoding="utf-8").splitlines()) < 300


def test_own_environment(run: Any) -> None:
    said = run("own_environment")
    assert "Safe: all checks passed" in said and "the expert wins +0." in said
    advantages = [float(line.split()[-1]) for line in said.splitlines() if "advantage" in line]
    assert min(advantages) < 0 < max(advantages)


def test_a_model_behind_an_api(run: Any, serve: Any) -> None:
    server = serve(lambda request: completion(None, ("guess", json.dumps({"number": 1}))))
    said = run("evaluate_api_model", f"openai:{server.url}", "--episodes", "6")
    assert "model:  success" in said and "difference" in said and "not solved: " in said
    assert "tools" in server.requests[0]


@pytest.mark.slow
def test_own_estimator(run: Any, tmp_path: Path) -> None:
    said = run("own_estimator", "--steps", "2", "--demos", "120")
    assert "advantages: [ 0.4   0.45  0.   -0.4  -0.45]" in said
    config = json.loads((tmp_path / "runs/tiny-001/config.json").read_text(encoding="utf-8"))
    assert config["credit"]["estimator"].endswith("own_estimator.py:same_turn")


@pytest.mark.slow
def test_several_environments(run: Any) -> None:
    said = run("several_environments", "--steps", "1", "--demos", "120")
    assert "guess: 0." in said and "maze: 0." in said


@pytest.mark.slow
def test_judged_reward(run: Any, tmp_path: Path, serve: Any) -> None:
    def judge(request: dict[str, Any]) -> Any:
        """Score each of the four episodes by its place."""
        scores = {str(place): place / 4 for place in range(1, 5)}
        return completion(json.dumps({"reason": "by place", "scores": scores}))

    said = run("judged_reward", f"openai:{serve(judge).url}?model=only", "--steps", "1")
    assert "8 episodes" in said
    assert len((tmp_path / "runs/tiny-001/judge.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.slow
def test_tools_over_mcp(run: Any, tmp_path: Path) -> None:
    said = run("tools_over_mcp")
    assert "tools: pay, price" in said and "> price {'of': 'dates'}: 4 coins" in said
    assert "oracle: success 1.000" in said
    assert json.loads((tmp_path / "runs/tiny-001/config.json").read_text(encoding="utf-8"))["env"]["id"] == "Till-v0"
    assert int(said.partition("before RL, ")[2].partition("%")[0]) > 20, "random calls solve next to nothing"


@pytest.mark.slow
def test_train_with_trl(run: Any) -> None:
    assert "mean reward by step: [" in run("train_with_trl", "--steps", "1")


@pytest.mark.slow
def test_grpo_on_one_page_learns() -> None:
    torch.set_num_threads(1)
    train = load("train_grpo").train
    found = [asyncio.run(train(num_steps=24, num_eval=200, seed=seed)) for seed in (0, 1)]
    gains = [after - before for before, after in found]
    assert sum(gains) / len(gains) > 0.05, "a few steps of a tiny model, which rounding changes from machine to machine"
