"""The error tree, and the one place where foreign errors enter it."""

import asyncio

import pytest

from agentgym import errors
from agentgym.errors import (
    AgentGymError,
    EngineError,
    EnvError,
    EnvTimeoutError,
    InfrastructureError,
    MissingExtraError,
    ToolError,
    UsageError,
    boundary,
    unknown_name,
)


def test_foreign_errors_get_the_class_of_the_boundary_and_keep_their_cause() -> None:
    with pytest.raises(EngineError, match="generate: KeyError: 'x'") as raised, boundary(EngineError, "generate"):
        raise KeyError("x")
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [TimeoutError(), TimeoutError("no answer in 3 s")])
def test_timeouts_become_env_timeouts(error: TimeoutError) -> None:
    with (
        pytest.raises(EnvTimeoutError, match=r"env\.step: (timed out|no answer in 3 s)"),
        boundary(EnvError, "env.step"),
    ):
        raise error


@pytest.mark.parametrize("error", [ToolError("no"), UsageError("no"), EnvTimeoutError("no"), errors.ClosedError("no")])
def test_errors_of_our_own_pass(error: AgentGymError) -> None:
    with pytest.raises(type(error)) as raised, boundary(EnvError, "env.step"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1)])
def test_cancellation_and_ctrl_c_pass(error: BaseException) -> None:
    with pytest.raises(type(error)), boundary(EnvError, "env.step"):
        raise error


def test_every_error_is_in_the_tree_and_in_at_most_one_of_its_branches() -> None:
    branches = (UsageError, InfrastructureError, ToolError)
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(classes) > 10
    for error_class in classes:
        assert issubclass(error_class, AgentGymError)
        assert sum(issubclass(error_class, branch) for branch in branches) <= 1


def test_a_missing_extra_is_reported_as_the_command_that_installs_it() -> None:
    error = MissingExtraError("agentgym/ALFWorld-v0", "alfworld")
    assert str(error) == "agentgym/ALFWorld-v0 needs the extra 'alfworld': pip install -e '.[alfworld]'"
    assert error.extra == "alfworld"


def test_unknown_names_suggest_and_list() -> None:
    assert "did you mean 'gigpo'?" in str(unknown_name("estimator", "gigop", ["grpo", "gigpo"]))
    far = str(unknown_name("estimator", "zzz", ["grpo", "gigpo"], hint="agentgym list"))
    assert far == "unknown estimator 'zzz'; known: gigpo, grpo (agentgym list)"
    assert str(unknown_name("run", "a", [])) == "unknown run 'a'; known: none"


def test_of_many_names_the_five_nearest_are_told() -> None:
    names = [f"agentgym/World{letter}-v0" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXY"] + ["agentgym/Household-v0"]
    said = str(unknown_name("environment", "houshold-v0", names, "agentgym list shows all"))
    assert said.startswith(
        "unknown environment 'houshold-v0'; did you mean 'agentgym/Household-v0'? the nearest of 26: "
    )
    listed = said.partition("26: ")[2].partition(" (agentgym list")[0].split(", ")
    assert listed[0] == "agentgym/Household-v0" and len(set(listed)) == 5 and set(listed) <= set(names)


def test_a_tool_error_has_a_type() -> None:
    assert ToolError("no").error_type == "tool_error"
    assert ToolError("no", "invalid_arguments").error_type == "invalid_arguments"
