"""Components of users: by decorator, by file, by module, by entry point; saved in a configuration and read again."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from agentgym import plugins
from agentgym.credit.component import ESTIMATORS, FAMILIES, SELECTIONS, SHAPERS, estimator, shaper
from agentgym.credit.compose import credit_turns
from agentgym.credit.config import CreditConfig
from agentgym.credit.state import CreditState
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import ConfigError, UnknownNameError, UsageError
from agentgym.evals.policies import named_policy
from agentgym.plugins import Options, options_of
from agentgym.registry import make
from agentgym.tool import tool
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.recipes import load_recipe, recipe
from agentgym.types import Task, ToolCall

FILE = '''
from dataclasses import dataclass

import numpy as np

from agentgym import plugins
from agentgym.credit.component import estimator, modulator, selection, shaper
from agentgym.credit.parts import Modulated
from agentgym.credit.parts import Shaped
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.plugins import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSoFarOptions(Options):
    kind: str = "best_so_far"
    margin: float = 0.0


@estimator("best_so_far", columns=("group_keys",))
def best_so_far(table: TurnTable, options: BestSoFarOptions, memory, gamma):
    """Compare each return with the best one seen in earlier batches, minus a margin."""
    best = memory.get("best", 0.0)
    advantage = table.reward - best + options.margin
    credited = TurnAdvantages(advantage=advantage, return_to_go=gamma * table.reward)
    return credited, {"best": max(best, float(table.reward.max()))}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubledOptions(Options):
    kind: str = "doubled"
    factor: float = 2.0


@shaper("doubled", options=DoubledOptions)
def doubled(table, factor):
    from dataclasses import replace
    return Shaped(table=replace(table, reward=factor * table.reward))


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvedOptions(Options):
    kind: str = "halved"


@modulator("halved", options=HalvedOptions)
def halved(table, advantage):
    return Modulated(advantage=advantage / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTurnsOptions(Options):
    kind: str = "first_turns"


@selection("first_turns", options=FirstTurnsOptions)
def first_turns(table):
    return table.turn == 0
'''
CONFIGS: TypeAdapter[CreditConfig] = TypeAdapter(CreditConfig)


@pytest.fixture(autouse=True)
def _registries_as_before() -> Iterator[None]:
    for registry in FAMILIES.values():
        list(registry)  # agentgym's own are there before
    before = {family: dict(registry._components) for family, registry in FAMILIES.items()}
    yield
    for family, registry in FAMILIES.items():
        registry._components = before[family]
    plugins._loaded_files.clear()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def table() -> TurnTable:
    rewards = [[0.0, 2.0], [1.0]]
    return TurnTable.from_lists(rewards=rewards, group_of_trajectory=[0, 0]).with_columns(group_keys=["task"])


def settings(file: str) -> dict[str, Any]:
    return {
        "estimator": f"{file}:best_so_far",
        "gamma": 0.5,
        "options": {"kind": f"{file}:best_so_far", "margin": 0.25},
        "shapers": [{"kind": f"{file}:doubled", "factor": 3.0}],
        "modulators": [{"kind": f"{file}:halved"}],
        "selections": [{"kind": f"{file}:first_turns"}],
    }


def test_components_of_a_users_file_credit_a_batch(file: str) -> None:
    config = CONFIGS.validate_python(settings(file))
    assert config.columns() == ("group_keys",)
    assert config.warnings == ()
    first = credit_turns(table(), config)
    assert first.advantage.tolist() == [0.125, 3.125, 1.625]
    assert first.return_to_go.tolist() == [0.0, 3.0, 1.5]
    assert first.loss_weight.tolist() == [1.0, 0.0, 1.0]
    again = credit_turns(table(), config, CreditState.from_dict(json.loads(json.dumps(first.state.to_dict()))))
    assert again.advantage.tolist() == [-2.875, 0.125, -1.375], "the best return, 6, is remembered"


def test_a_saved_configuration_finds_the_file_again(file: str) -> None:
    config = CONFIGS.validate_python(settings(file))
    saved = json.loads(json.dumps(dataclasses.asdict(config)))
    assert saved["shapers"][0] == {"kind": f"{file}:doubled", "factor": 3.0}
    assert CONFIGS.validate_python(saved) == config


def test_a_file_changed_within_a_second_is_run_as_it_is_and_leaves_no_bytecode(tmp_path: Path) -> None:
    world = tmp_path / "world.py"
    command = [sys.executable, "-c", f"from agentgym.plugins import named_object as n; print(n({f'{world}:limit'!r}))"]
    for limit in ("4", "5"):
        world.write_text(f"limit = {limit}\n")
        os.utime(world, (1_000_000_000, 1_000_000_000))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert ended.stdout.strip() == limit
    assert list(tmp_path.iterdir()) == [world]


def test_a_module_on_the_path_is_named_by_its_dotted_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FILE.replace("best_so_far", "best_in_module").split(
        "@dataclass(frozen=True, slots=True, kw_only=True)\nclass Doubled"
    )
    (tmp_path / "my_credit_module.py").write_text(source[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = CreditConfig(estimator="my_credit_module:best_in_module")
    assert np.isfinite(credit_turns(table(), config).advantage).all()
    assert ESTIMATORS["best_in_module"].status == "user"


def test_unknown_names_say_what_is_near_and_how_to_name_ones_own() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown estimator 'gigop'; did you mean 'gigpo'\?.*module:name"):
        CreditConfig(estimator="gigop")
    with pytest.raises(UnknownNameError, match=r"name one of your own as mine\.py:NAME"):
        CreditConfig(estimator="mine.py")
    with pytest.raises(UsageError, match=rf"no file 'nowhere\.py' in {re.escape(str(Path.cwd()))}"):
        CreditConfig(estimator="nowhere.py:mine")
    with pytest.raises(UsageError, match="no module 'nowhere_at_all'"):
        CreditConfig(estimator="nowhere_at_all:mine")
    with pytest.raises(ConfigError, match="expected a component's settings"):
        _read_shaper("g_ra")


def _read_shaper(value: Any) -> None:
    from agentgym.plugins import ByKind

    try:
        ByKind(SHAPERS)._read(value)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def test_a_function_that_nothing_can_fill_is_refused_when_it_is_registered() -> None:
    with pytest.raises(ConfigError, match=r"estimator 'curious' takes curiosity, which nothing fills; .*gamma.*table"):

        @estimator("curious")
        def curious(table: TurnTable, curiosity: float) -> TurnAdvantages:
            raise AssertionError("never called")

    with pytest.raises(ConfigError, match=r"'long' takes steps, which nothing fills; .* takes no parameters$"):
        recipe("long")(lambda steps: load_recipe("tiny"))


def test_a_name_cannot_be_taken_from_another_module() -> None:
    with pytest.raises(ConfigError, match=r"'gigpo' is already registered by agentgym\.credit\.estimators\.gigpo"):

        @estimator("gigpo")
        def mine(table: TurnTable) -> TurnAdvantages:
            raise AssertionError("never called")


SCRIPT = """
from agentgym import Task, ToolEnv, make, register
from agentgym.credit.component import ESTIMATORS, estimator
from agentgym.credit.table import TurnAdvantages, TurnTable


@estimator("of_the_script")
def of_the_script(table: TurnTable):
    return TurnAdvantages(advantage=table.reward, return_to_go=table.reward)


class Waits(ToolEnv):
    def start(self, task: Task) -> str:
        return "Wait."


register("Waits-v0", Waits)
print("once")
assert ESTIMATORS[f"{__file__}:of_the_script"].function is of_the_script
assert isinstance(make(f"{__file__}:Waits-v0"), Waits)
"""


def test_a_script_names_its_own_components_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "once\n"), done.stderr


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamelessOptions(Options):
    kind: str = "another"


def test_options_must_bear_the_components_name() -> None:
    with pytest.raises(ConfigError, match="NamelessOptions must have the key kind: str = 'named'"):

        @shaper("named", options=NamelessOptions)
        def named(table: TurnTable) -> None:
            raise AssertionError("never called")


def test_options_are_read_off_the_annotation() -> None:
    def takes(table: TurnTable, options: NamelessOptions | None = None) -> None: ...

    assert options_of(takes) is NamelessOptions
    assert options_of(lambda table: None) is None
    assert "first_turns" not in SELECTIONS or SELECTIONS["first_turns"].status == "user"


# ------------------------------------------------------------------------------------------- recipes, policies, names

MORE = """
from dataclasses import replace

from agentgym.evals.policies import policy
from agentgym.trainers.recipes import load_recipe, recipe


@recipe("short")
def short():
    return replace(load_recipe("tiny"), recipe="short", num_steps=7)


@recipe("wrong")
def wrong():
    return 3


@recipe("fails")
def fails():
    return {}["a"]


@policy("nothing")
def nothing():
    return None


@policy("always_three")
def always_three(env):
    return "guess: 3"
"""


class Guess(ToolEnv):
    def start(self, task: Task) -> str:
        return "Guess."

    @tool
    def guess(self, number: int) -> str:
        """Guess the number."""
        return "No."


def test_recipes_and_policies_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "more.py"
    path.write_text(MORE)
    assert (load_recipe(f"{path}:short").num_steps, load_recipe("short").recipe) == (7, "short")
    with pytest.raises(ConfigError, match="returned int, expected a TrainConfig"):
        load_recipe("wrong")
    with pytest.raises(ConfigError, match="recipe 'fails' failed: KeyError: 'a'"):
        load_recipe("fails")
    env = Guess()
    agent = named_policy(f"{path}:always_three")(env, 0)
    agent.begin(env.reset(seed=0)[0], env.tools)
    decision = asyncio.run(agent.decide())
    assert decision is not None and decision.turn.action.calls[0] == ToolCall("guess", {"number": 3}, "0")
    idle = named_policy(f"{path}:nothing")(env, 0)
    idle.begin(env.reset(seed=0)[0], env.tools)
    with pytest.raises(UsageError, match=r"policy 'nothing' returned what is no action: .*; got None"):
        asyncio.run(idle.decide())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CreditConfig(estimator="gigpp"), "unknown estimator 'gigpp'; did you mean 'gigpo'"),
        (lambda: SHAPERS["ufoo"], "unknown shaper 'ufoo'; did you mean 'ufo'"),
        (lambda: LossConfig(kind="ppo_clop"), "unknown policy loss 'ppo_clop'; did you mean 'ppo_clip'"),
        (lambda: EngineConfig(kind="torc"), "unknown engine 'torc'; did you mean 'torch'"),
        (lambda: load_recipe("tinyy"), "unknown recipe 'tinyy'; did you mean 'tiny'"),
        (lambda: named_policy("oracel"), "unknown policy 'oracel'; did you mean 'oracle'"),
        (lambda: make("Household-v1"), "unknown environment 'Household-v1'; did you mean"),
        (lambda: CreditConfig(shapers=({"kind": "ufo"},)), "shapers holds {'kind': 'ufo'}, expected the options"),
    ],
)
def test_unknown_names_are_configuration_errors(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert said in str(raised.value)


def lists(**changed: Any) -> TurnTable:
    return TurnTable.from_lists(**{"rewards": [[0.0], [1.0, 2.0]], "group_of_trajectory": [0, 0], **changed})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: lists(states=[["a"], ["b"]]), "states[1] has 1 entries, expected 2, one per turn"),
        (lambda: lists(is_valid=[[True]]), "is_valid has 1 lists, expected one for each of the 2 trajectories"),
        (lambda: lists(rewards=[[0.0], 1.0]), "rewards[1] is 1.0, expected the list of a trajectory's turns"),
        (lambda: lists(group_of_trajectory=[0]), "group_of_trajectory has 1 entries"),
        (lambda: lists().with_columns(entropy=[[0.5], [0.5]]), "column 'entropy': list 1 has 1 entries, expected 2"),
        (lambda: lists().with_columns(entropy=[[0.5], 0.5]), "column 'entropy': entry 1 is 0.5 among lists"),
        (lambda: lists().with_columns(entropy=[[0.5]]), "column 'entropy' has 1 lists, expected one for each of 2"),
        (lambda: lists().with_columns(entropy=[0.5]), "column 'entropy' has 1 rows, the table 3"),
    ],
)
def test_ragged_lists_are_named(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert said in str(raised.value)
