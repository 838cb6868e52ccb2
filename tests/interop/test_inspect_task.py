"""Our environments as a task of inspect_ai, evaluated by inspect itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import agentgym
from agentgym.errors import UsageError
from agentgym.types import ToolCall

pytest.importorskip("inspect_ai", reason="needs the package inspect_ai (the extra inspect)")

from inspect_ai import eval as inspect_eval
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log
from inspect_ai.model import ChatMessage, ModelOutput, ModelUsage, get_model
from inspect_ai.tool import ToolCall as InspectCall

from agentgym.interop.inspect_task import agentgym as agentgym_task

HOUSE = "agentgym/Household-v0"

FAILING = '''
from agentgym import ToolEnv, register, tool


class Failing(ToolEnv):
    """Its wheel comes off in every second task."""

    max_turns = 2

    def start(self, task):
        return "Turn the wheel."

    @tool
    def turn_wheel(self) -> str:
        """Turn it."""
        self.award(1.0, "turned")
        if self.task.seed % 2:
            raise RuntimeError("the wheel came off")
        return "It turns."


register("Failing-v0", Failing)
'''

MODEL = '''
from inspect_ai.model import ModelAPI, ModelOutput, ModelUsage, modelapi
from inspect_ai.tool import ToolCall


@modelapi(name="wheel")
class Wheel(ModelAPI):
    """Turns the wheel in every turn."""

    async def generate(self, input, tools, tool_choice, config):
        assert [tool.name for tool in tools] == ["turn_wheel"]
        output = ModelOutput.from_content("wheel", "")
        output.choices[0].message.tool_calls = [ToolCall(id="1", function="turn_wheel", arguments={})]
        output.usage = ModelUsage(total_tokens=1)
        return output
'''


def evaluated(play: Any, folder: Path, **arguments: Any) -> EvalLog:
    model = get_model("mockllm/model", custom_outputs=play)
    task = agentgym_task(**arguments)
    (log,) = inspect_eval(task, model=model, log_dir=str(folder), display="none", max_samples=1)
    return log


def calling(*calls: ToolCall) -> ModelOutput:
    output = ModelOutput.from_content("mockllm", "")
    output.usage = ModelUsage(total_tokens=1)  # else they are counted by a vocabulary from the network
    output.choices[0].message.tool_calls = [
        InspectCall(id=f"id-{n}", function=call.name, arguments=dict(call.arguments)) for n, call in enumerate(calls)
    ]
    return output


def expert(env_id: str, split: str, num: int) -> tuple[Any, list[float], list[int]]:
    """Outputs of the expert by first observation and turn, with one call of a tool that is none; returns and turns."""
    scripts: dict[str, list[ModelOutput]] = {}
    returns, num_turns = [], []
    env = agentgym.make(env_id)
    for index in range(num):
        said, _ = env.reset(options={"task": index, "split": split}, seed=env.tasks(split)[index].seed)
        script: list[ModelOutput] = []
        total, done = 0.0, False
        while not done:
            calls = [ToolCall("dance")] if not script else [c for c in env.oracle().calls if isinstance(c, ToolCall)]
            script.append(calling(*calls))
            _, reward, terminated, truncated, info = env.step(calls)
            total, done = total + reward, terminated or truncated
        assert info["success"]
        scripts[said[0].text] = script
        returns.append(total)
        num_turns.append(len(script))

    def play(messages: list[ChatMessage], *given: Any) -> ModelOutput:
        return scripts[messages[0].text][sum(message.role == "assistant" for message in messages)].model_copy(deep=True)

    return play, returns, num_turns


def test_scores_equal_those_in_process(tmp_path: Path) -> None:
    play, returns, num_turns = expert(HOUSE, "test", 4)
    log = evaluated(play, tmp_path, env_id=HOUSE, num_tasks=4)
    assert log.status == "success" and log.samples is not None and log.results is not None
    scores = [sample.scores["success_and_reward"] for sample in log.samples if sample.scores]
    assert [score.value for score in scores] == [{"success": 1.0, "reward": value} for value in returns]
    assert [(score.metadata or {})["num_turns"] for score in scores] == num_turns
    assert {score.name: score.metrics["mean"].value for score in log.results.scores} == {
        "success": 1.0,
        "reward": sum(returns) / 4,
    }
    first = log.samples[0]
    assert first.id == "test-0" and [message.role for message in first.messages[:3]] == ["user", "assistant", "tool"]
    assert "dance" in first.messages[2].text  # what a tool that is none answers


def test_a_failure_is_an_error_and_no_score(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")
    turn = calling(ToolCall("turn_wheel"))
    log = evaluated([turn] * 100, tmp_path, env_id=f"{tmp_path / 'failing.py'}:Failing-v0", split="train", num_tasks=5)
    assert log.samples is not None and log.results is not None
    failed = [sample for sample in log.samples if sample.error is not None]
    assert [sample.id for sample in failed] == ["train-1", "train-3"]
    assert all("the wheel came off" in sample.error.message and not sample.scores for sample in failed if sample.error)
    assert (log.status, log.results.completed_samples) == ("success", 3)
    scored = [sample.scores["success_and_reward"] for sample in log.samples if sample.scores]
    assert [(score.metadata or {})["parts"] for score in scored] == [{"turned": 2.0}] * 3


def test_its_limit_ends_an_episode_that_is_scored(tmp_path: Path) -> None:
    model = get_model("mockllm/model", custom_outputs=[calling(ToolCall("look"))] * 100)
    task = agentgym_task(HOUSE, num_tasks=1)
    (log,) = inspect_eval(task, model=model, log_dir=str(tmp_path), display="none", message_limit=6)
    assert log.samples is not None
    (sample,) = log.samples
    assert sample.limit is not None and sample.limit.type == "message" and sample.scores
    assert sample.scores["success_and_reward"].value == {"success": 0.0, "reward": 0.0}


@pytest.mark.parametrize("target", ["agentgym/interop/inspect_task.py", "agentgym/agentgym"])
def test_its_command_evaluates_ours(target: str, tmp_path: Path) -> None:
    named = {point.value for point in entry_points(group="inspect_ai")}
    if target == "agentgym/agentgym" and "agentgym.interop.inspect_task" not in named:
        pytest.skip("needs the installed package's entry point")
    (tmp_path / "wheel_model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "wheel_model-1.0.dist-info").mkdir()
    (tmp_path / "wheel_model-1.0.dist-info" / "METADATA").write_text("Name: wheel_model\nVersion: 1.0\n")
    (tmp_path / "wheel_model-1.0.dist-info" / "entry_points.txt").write_text(
        "[inspect_ai]\nwheel_model = wheel_model\n"
    )
    (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")
    root = Path(agentgym.__file__).parent.parent
    env_id = f"{tmp_path / 'failing.py'}:Failing-v0"
    command = [
        str(Path(sys.executable).parent / "inspect"), "eval", target, "-T", f"env_id={env_id}", "-T", "split=train",
        "-T", "num_tasks=5", "-T", "max_turns=1", "--model", "wheel/one",
        "--log-dir", str(tmp_path / "logs"), "--display", "none",
    ]  # fmt: skip
    # inspect knows an installed package by its metadata, which those of a checkout on the path would hide
    paths = [str(tmp_path), *([str(root)] if target.endswith(".py") else ())]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=root, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = list_eval_logs(str(tmp_path / "logs"))
    log = read_eval_log(found)
    assert log.status == "success"
    values = [s.scores["success_and_reward"].value if s.scores else s.error is not None for s in log.samples or ()]
    assert values == [{"success": 1.0, "reward": 1.0}, True] * 2 + [{"success": 1.0, "reward": 1.0}]


def test_nested_schemas_have_no_references() -> None:
    from agentgym.interop.inspect_task import _tool
    from agentgym.types import ToolSpec

    point = {"type": "object", "properties": {"x": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Point"}}, "$defs": {"Point": point}}
    assert json.loads(_tool(ToolSpec("go", "Go.", schema)).model_dump_json(exclude_none=True))["parameters"][
        "properties"
    ]["at"]["properties"] == {"x": {"type": "integer"}}


def test_wrong_environments() -> None:
    with pytest.raises(UsageError, match="-T env_id=agentgym/Household-v0"):
        agentgym_task()
    with pytest.raises(UsageError, match="unknown environment"):
        agentgym_task("agentgym/Nowhere-v0")
    with pytest.raises(UsageError, match="unknown split"):
        agentgym_task(HOUSE, split="holdout")
