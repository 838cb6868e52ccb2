"""Our environments as TRL's ``environment_factory``: TRL reads the tools, drives the episodes and gets the rewards."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import BaseModel, Field
from testkit.tokenizers_for_tests import trained
from testkit.worlds import Counter as CountingWorld

pytest.importorskip("trl")

from transformers.utils.chat_template_utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

import agentgym
from agentgym.check.chaos import Chaos
from agentgym.env.env import Env
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import ConfigError, RunStoppedError, ToolError, UsageError
from agentgym.rollout.request import EpisodeLimits
from agentgym.tool import tool
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.tiny import build_model
from agentgym.trainers.trl.environments import (
    TASK_COLUMNS,
    environment_factory,
    episode_return,
    task_dataset,
    tool_method,
)
from agentgym.trainers.trl.episode import OVER, UNAVAILABLE
from agentgym.types import Message, Task, ToolSpec

TEMPLATE = files("trl").joinpath("chat_templates/qwen2_5.jinja").read_text(encoding="utf-8")
"""A template whose tool calls TRL knows how to read."""
ROW: dict[str, Any] = {"task_id": "train-0", "task_split": "train", "task_index": 0}  # count to 2


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


class Toolbox(ToolEnv):
    """Parameters of every kind."""

    def start(self, task: Task) -> str:
        return "Ready."

    @tool
    def use(
        self,
        name: str,
        count: int,
        share: float,
        is_open: bool,
        words: list[str],
        size: Literal["small", "large"],
        color: Color,
        note: str | None = None,
    ) -> str:
        """Use everything. Returns: nothing.

        Args:
            name: Its name.
            size: How large (choices: ["none"])
        """
        return f"{name} {count} {share} {is_open} {words} {size} {color} {note}"

    @tool
    def place(self, point: Point, angle: Annotated[float, Field(ge=0, le=1)] = 0.5) -> str:
        """Place something."""
        return f"{point} {angle}"


def begun(env: Any, **settings: Any) -> Any:
    """One environment as TRL would make it."""
    return environment_factory(env, **settings)()


# ------------------------------------------------------------------------------------------------------- schemas


def schema_of(method: Any) -> dict[str, Any]:
    schema: dict[str, Any] = get_json_schema(method)["function"]
    return schema


def test_trl_reads_the_household_as_we_declare_it() -> None:
    household = begun("agentgym/Household-v0")
    specs = agentgym.make("agentgym/Household-v0").tools
    for spec in specs:
        read, declared = schema_of(getattr(household, spec.name)), spec.as_function()["function"]
        assert (read["name"], read["description"]) == (declared["name"], declared["description"])
        assert read["parameters"]["properties"] == declared["parameters"]["properties"]
        assert read["parameters"].get("required", []) == declared["parameters"]["required"]
        assert set(read) == {"name", "description", "parameters"}, "nothing that we do not declare"
    methods = {name for name, _ in inspect.getmembers(type(household), inspect.isfunction) if not name.startswith("_")}
    assert methods == {spec.name for spec in specs} | {"reset"}, "what TRL takes for tools"


def test_every_kind_of_parameter_is_read_again() -> None:
    read = schema_of(begun(Toolbox).use)
    kinds = {name: {k: v for k, v in said.items() if k != "description"} for name, said in properties(read).items()}
    assert kinds == {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "is_open": {"type": "boolean"},
        "words": {"type": "array", "items": {"type": "string"}},
        "size": {"type": "string", "enum": ["small", "large"]},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "note": {"type": "string", "nullable": True},
    }
    assert read["parameters"]["required"] == ["name", "count", "share", "is_open", "words", "size", "color"]
    assert read["description"] == "Use everything. Returns - nothing.", "no section of a docstring begins in it"
    assert properties(read)["name"]["description"] == "Its name."


def test_what_hints_cannot_say_is_in_the_description() -> None:
    read = properties(schema_of(begun(Toolbox).place))
    assert (read["point"]["type"], read["angle"]["type"]) == ("object", "number")
    said = {name: json.loads(part["description"].partition("(JSON schema: ")[2][:-1]) for name, part in read.items()}
    assert said["angle"] == {"type": "number", "default": 0.5, "minimum": 0, "maximum": 1}
    assert said["point"]["properties"] == {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}}


def properties(read: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = read["parameters"]["properties"]
    return found


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ToolSpec("get_reward", "Peek.", {}), "tool 'get_reward': TRL calls get_reward itself"),
        (ToolSpec("two-words", "Do.", {}), "'two-words' cannot be the name of a public one"),
        (ToolSpec("_hidden", "Do.", {}), "'_hidden' cannot be the name of a public one"),
        (ToolSpec("do", "Do.", {"properties": {"user-id": {"type": "string"}}}), "'user-id' cannot be a parameter"),
    ],
)
def test_names_that_trl_could_not_expose_are_refused(spec: ToolSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tool_method(spec, lambda self, name, arguments: "")


def test_an_environment_without_tools_is_refused() -> None:
    class Silent(Env):
        """No tools."""

    with pytest.raises(UsageError, match="Silent has no tools"):
        environment_factory(Silent)


# ------------------------------------------------------------------------------------------------------ episodes


def test_an_episode_is_played_by_its_methods() -> None:
    world = begun(CountingWorld)
    assert world.reset(**ROW, prompt=[]) == "Count to 2."
    assert world.add(number=1) == "The count is 1."
    assert reward_of(world) == pytest.approx(-0.01)
    assert "number: Field required" in world.add(), "the environment's own words, and no crash"
    assert world.add(number="1") == "The count is 2."
    assert reward_of(world) == pytest.approx(0.98)
    assert world.add(number=1) == OVER
    assert world.reset(**ROW) == "Count to 2."
    assert reward_of(world) == 0.0, "nothing is left of the last episode"


def reward_of(*worlds: Any) -> Any:
    rewards = episode_return([], [], environments=worlds)
    return rewards[0] if len(rewards) == 1 else rewards


def test_a_crash_inside_a_tool_is_not_a_reward() -> None:
    attempts: Counter[str] = Counter()
    closed: list[str] = []

    class Watched(CountingWorld):
        def stop(self) -> None:
            closed.append("closed")

    factory = environment_factory(lambda: Chaos(Watched(), crash=0.5, attempts=attempts, seed=3), max_failure_rate=1.0)
    closed.clear()
    world: Any = factory()
    crashed = False
    for _ in range(20):
        world.reset(**ROW)
        if world.add(number=1) == UNAVAILABLE:
            assert world.add(number=1) == UNAVAILABLE, "the episode does not go on"
            assert reward_of(world) is None
            crashed = True
            break
    assert crashed
    assert closed, "a spoilt environment is not used again"


def test_a_hung_reset_is_tried_again_on_a_fresh_environment() -> None:
    made: list[Env] = []

    class Hanging(CountingWorld):
        async def astart(self, task: Task) -> str:
            made.append(self)
            if len(made) == 1:
                raise TimeoutError("no answer")
            return self.start(task)

    world = begun(Hanging, limits=EpisodeLimits(reset_timeout_s=0.2))
    assert world.reset(**ROW) == "Count to 2."
    assert len(made) == 2 and made[0] is not made[1]


def test_an_environment_that_does_something_else_is_refused() -> None:
    class Expert(CountingWorld):
        async def arespond(self, action: Message) -> Any:
            self.play_instead(self.oracle())
            return await super().arespond(self.oracle())

    world = begun(Expert)
    world.reset(**ROW)
    with pytest.raises(UsageError, match="does something else in place of an action, which TRL's conversation cannot"):
        world.add(number=3)


def test_what_the_policy_did_wrong_keeps_its_reward() -> None:
    class Strict(CountingWorld):
        async def arespond(self, action: Any) -> Any:
            self.award(0.25)
            raise ToolError("out of bounds")

    world = begun(Strict)
    world.reset(**ROW)
    assert world.add(number=1) == "Error: out of bounds"
    assert reward_of(world) == 0.0


def test_too_many_failures_stop_the_run() -> None:
    factory = environment_factory(lambda: Chaos(CountingWorld(), crash=1.0), max_retries=0)
    worlds = [factory(), factory()]
    for world in worlds:
        assert world.reset(**ROW) == UNAVAILABLE
    with pytest.raises(RunStoppedError, match=r"2 of 2 episodes failed .* \(limit 50%\).*crash"):
        reward_of(*worlds)


def test_rewards_are_logged_and_other_environments_left_alone() -> None:
    world = begun(CountingWorld)
    logged: dict[str, float] = {}
    world.reset(**ROW)
    world.add(number=2)
    rewards = episode_return([], [], environments=[world, object()], log_metric=logged.__setitem__)
    assert rewards == [pytest.approx(0.99), None]
    assert logged == {"rollouts/lost_share": 0.0, "rollouts/success": 1.0}


def test_a_dataset_names_tasks_and_their_seeds() -> None:
    dataset = task_dataset(CountingWorld, "test", 5)
    tasks = CountingWorld().tasks("test")
    assert set(dataset.column_names) == {"prompt", *TASK_COLUMNS}
    assert dataset["task_id"][:] == [tasks[n].id for n in range(5)]
    assert dataset["task_seed"][:] == [tasks[n].seed for n in range(5)]
    assert dataset[0]["prompt"] == [{"role": "user", "content": ""}]
    world = begun(CountingWorld)
    for row in dataset:
        assert world.reset(**row) == f"Count to {2 + row['task_seed'] % 2}."


class Taskless(CountingWorld):
    def tasks(self, split: str) -> Sequence[Task]:
        return ()


def test_a_dataset_has_rows() -> None:
    with pytest.raises(ConfigError, match="num_tasks must be at least 1, got 0"):
        task_dataset(CountingWorld, "test", 0)
    with pytest.raises(UsageError, match="has no tasks in split"):
        task_dataset(Taskless, "test")


def test_rows_without_a_task_or_with_another_are_refused() -> None:
    world = begun(CountingWorld)
    with pytest.raises(UsageError, match=r"no columns task_id.*make the dataset with task_dataset"):
        world.reset(prompt=[])
    with pytest.raises(UsageError, match="says task 'elsewhere', and the environment's is 'train-0'"):
        world.reset(**{**ROW, "task_id": "elsewhere"})


# ---------------------------------------------------------------------------------------------------- TRL itself


def call(number: int) -> str:
    body = json.dumps({"name": "add", "arguments": {"number": number}})
    return f"<tool_call>\n{body}\n</tool_call><|im_end|>"


class Scripted(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with the sampling scripted, one list of sayings per rollout; all else is TRL's."""

    def __init__(self, script: Sequence[Sequence[str]], **trl_arguments: Any) -> None:
        super().__init__(**trl_arguments)
        self.script = [list(sayings) for sayings in script]
        self.prompts: list[str] = []
        self.outputs: list[dict[str, torch.Tensor]] = []

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        speakers = [sayings for sayings in self.script if sayings]
        assert len(speakers) == len(prompt_ids)
        self.prompts += [self._tokenizer.decode(ids) for ids in prompt_ids]
        said = [self._tokenizer.encode(sayings.pop(0), add_special_tokens=False) for sayings in speakers]
        return said, None

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.outputs.append(super()._generate_and_score_completions(inputs))
        return self.outputs[-1]


def scripted(folder: Path, factory: Any, script: Sequence[Sequence[str]]) -> Scripted:
    tokenizer = trained(TEMPLATE)
    sizes = ModelConfig(hidden_size=32, num_layers=1, head_dim=16, max_context_tokens=2048)
    arguments = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=len(script),
        num_generations=len(script),
        max_completion_length=512,
        max_steps=1,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
    )
    return Scripted(
        script,
        model=build_model(tokenizer, sizes, 0),
        args=arguments,
        train_dataset=task_dataset(CountingWorld, "train", 1),
        processing_class=tokenizer,
        reward_funcs=episode_return,
        environment_factory=factory,
    )


def test_trl_drives_an_environment_and_gets_its_reward(tmp_path: Path) -> None:
    script = [
        [call(1), call(1), "Done.<|im_end|>"],  # counts to 2
        [call(3), "Done.<|im_end|>"],  # too far
        ["I give up.<|im_end|>"],
        [call(9), call(2), "Done.<|im_end|>"],  # refused, then there at once
    ]
    trainer = scripted(tmp_path, environment_factory(CountingWorld), script)
    trainer.train()
    assert "Count to 2." in trainer.prompts[0], "the observation is in the prompt"
    assert '"name": "add"' in trainer.prompts[0] and "Add a number between 1 and 3" in trainer.prompts[0]
    assert any("number must be between 1 and 3" in prompt for prompt in trainer.prompts), "the refusal is shown"
    (row,) = [row for row in trainer.state.log_history if "loss" in row]
    returns = torch.tensor([0.98, -0.01, 0.0, 0.99])
    assert row["rewards/episode_return/mean"] == pytest.approx(returns.mean().item(), abs=1e-6)
    assert (row["rollouts/success"], row["rollouts/lost_share"]) == (0.5, 0.0)
    expected = (returns - returns.mean()) / (returns.std() + 1e-4)
    torch.testing.assert_close(trainer.outputs[0]["advantages"], expected)


def test_a_failure_stays_out_of_trls_group_statistics(tmp_path: Path) -> None:
    made: list[Env] = []

    class SecondBreaks(CountingWorld):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        @tool
        def add(self, number: int) -> str:
            """Add a number between 1 and 3 to the count."""
            if self is made[2]:  # made[0] was looked at for its tools
                raise OSError("the disk is gone")
            self.finish(1.0 if number == 2 else 0.0)
            return "Counted."

    done = "Done.<|im_end|>"
    script = [[call(2), done], [call(2), done], [call(1), done], [call(1), done]]
    trainer = scripted(tmp_path, environment_factory(SecondBreaks), script)
    trainer.train()
    assert any(UNAVAILABLE in prompt for prompt in trainer.prompts)
    assert not any("disk is gone" in prompt for prompt in trainer.prompts), "the policy is not shown our troubles"
    (row,) = [row for row in trainer.state.log_history if "loss" in row]
    assert row["rewards/episode_return/mean"] == pytest.approx(1 / 3)
    assert row["rollouts/lost_share"] == 0.25
    valid = torch.tensor([1.0, 0.0, 0.0])
    expected = (valid - valid.mean()) / (valid.std() + 1e-4)
    advantages = trainer.outputs[0]["advantages"]
    torch.testing.assert_close(advantages[[0, 2, 3]], expected)
    assert advantages[1] == 0


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tiny model of random weights in place of one that would have to be downloaded, and on the CPU."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "outside.md").read_text(encoding="utf-8")
    (world,) = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if block.startswith("# count.py")
    ]
    (example,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    tokenizer = trained(TEMPLATE)
    sizes = ModelConfig(hidden_size=32, num_layers=1, head_dim=16, max_context_tokens=2048)
    build_model(tokenizer, sizes, 0).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "count.py").write_text(world, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    names: dict[str, Any] = {}
    for written, here in {
        "Qwen/Qwen2.5-0.5B-Instruct": str(tmp_path / "model"),
        "GRPOConfig(": "GRPOConfig(use_cpu=True, bf16=False, report_to='none', save_strategy='no', ",
        "max_completion_length=512": "max_completion_length=24",
    }.items():
        assert written in example
        example = example.replace(written, here)
    exec(example, names)
    assert names["trainer"].state.global_step == 1
    assert all(environment._episode.reward == 0.0 for environment in names["trainer"].environments)
