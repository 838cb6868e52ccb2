"""The comparison with TRL: both sides see the same tokens, the script runs, and the page shows its numbers."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym.types import Message, ToolCall

pytest.importorskip("trl")

FOLDER = Path(__file__).parents[1] / "benchmarks" / "vs_trl"


@pytest.fixture(scope="module")
def parts() -> Any:
    """The benchmark's modules."""
    sys.path.insert(0, str(FOLDER))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in ("arms", "bench", "mazes", "warm_start")})
    sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("task", ["MULTI", "ONE_TURN"])
def test_prompts_are_the_same_token_by_token(parts: Any, task: str) -> None:
    from trl import GRPOTrainer
    from trl.chat_template_utils import get_training_chat_template

    from agentgym.registry import make
    from agentgym.render.chat import ChatRenderer
    from agentgym.trainers.trl.environments import environment_factory

    setting = getattr(parts.mazes, task)
    env = make(setting.env_id, **setting.kwargs)
    tokenizer = parts.warm_start.train_tokenizer(lambda: make(setting.env_id, **setting.kwargs), 0)
    renderer = ChatRenderer(tokenizer)
    observation, _ = env.reset(options={"task": 3, "split": "train"})
    theirs: Any = environment_factory(setting.env_id, **setting.kwargs)()
    first = theirs.reset(task_id=env.task.id, task_split="train", task_index=3)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": first}],
        tools=[theirs.move],
        chat_template=get_training_chat_template(tokenizer),
        add_generation_prompt=True,
        return_dict=False,
    )
    assert tuple(prompt) == renderer.prompt_ids(observation, env.tools)
    replies = env.step("move: north")[0]
    trainer = SimpleNamespace(
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        chat_template=get_training_chat_template(tokenizer),
        chat_template_kwargs={},
        _is_vlm=False,
    )
    answer = [{"role": "tool", "name": "move", "content": theirs.move(direction="north")}]
    suffix = GRPOTrainer._get_tool_suffix_ids(trainer, answer)
    said = renderer.read(
        renderer.action_ids(Message("assistant", calls=(ToolCall("move", {"direction": "north"}),)), env.tools),
        env.tools,
    )
    assert tuple(suffix) == renderer.suffix_ids([*observation, said], replies, env.tools, renderer.turn_end_ids[0])


def test_both_take_the_same_tasks_in_the_same_order(parts: Any) -> None:
    budget = parts.arms.Budget(num_steps=2, groups_per_step=3, lr=1e-4, seed=5, context_tokens=64)
    rows = parts.arms._tasks(parts.mazes.MULTI, budget)
    assert len(rows) == 6 and len({row["task_id"] for row in rows}) == 6
    from agentgym.registry import make

    tasks = make(parts.mazes.MULTI.env_id, **parts.mazes.MULTI.kwargs).tasks("train")
    assert all((tasks[row["task_index"]].id, row["task_split"]) == (row["task_id"], "train") for row in rows)


def matching(result: Any, path: list[Any]) -> list[Any]:
    """The figures of a result at a path of the speed table: a list, a description of its items, a name."""
    rows, said, name = path
    return [row[name] for row in result[rows] if all(row[key] == value for key, value in said.items())]


@pytest.mark.slow
def test_all_arms_run(warm_run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "results.json"
    small = ["--seeds", "1", "--steps", "2", "--groups", "1", "--demos", "24", "--eval-episodes", "4"]
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    warm_run(FOLDER / "bench.py", *small, "--out", out)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["arm"] for row in rows] == ["TRL, environment_factory", "ours, grpo", "ours", "TRL, plain", "ours"]
    assert all(row["step_s_p50"] > 0 and row["sampled_tokens_per_s"] > 0 for row in rows)
    result = json.loads(out.read_text(encoding="utf-8"))
    for row in tomllib.loads((FOLDER.parent / "table" / "rows.toml").read_text(encoding="utf-8"))["row"]:
        if row["script"] == "vs_trl":
            assert [len(matching(result, row[name])) for name in ("read", "per")] == [1, 1]
    assert all(row["steps"] == 2 and row["episodes"] == 16 for row in rows)


@pytest.mark.skipif(not (FOLDER / "results.json").exists(), reason="not measured on a calm machine yet")
def test_the_page_shows_the_committed_numbers(parts: Any) -> None:
    text = parts.bench.table(json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))["rows"])
    assert (FOLDER / "results.md").read_text(encoding="utf-8") == text + "\n"
    assert text in (FOLDER.parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
