"""The nouns: derived values, canonical text, and what a status means."""

import dataclasses
import os
import subprocess
import sys
from enum import StrEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.canonical import canonical, digest
from agentgym.errors import UsageError
from agentgym.types import (
    EMPTY_COMPLETION,
    Completion,
    FinishReason,
    ImagePart,
    Message,
    RewardPart,
    RewardRole,
    Segment,
    Status,
    Task,
    TextPart,
    ToolResult,
    ToolSpec,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

TASK = Task(id="train-7", split="train", seed=7, data={"goal": "heat the mug"})

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def turn(index: int, prompt_ids: tuple[int, ...], sampled: tuple[int, ...], *values: float) -> Turn:
    completion = Completion(
        token_ids=sampled,
        logprobs=(-1.0,) * len(sampled),
        policy_versions=(0,) * len(sampled),
        finish_reason=FinishReason.STOP,
    )
    parts = tuple(RewardPart(f"part {number}", value) for number, value in enumerate(values))
    action = Message("assistant", "")
    return Turn(index=index, prompt_ids=prompt_ids, completion=completion, action=action, reward_parts=parts)


def trajectory(status: Status, *segments: Segment) -> Trajectory:
    return Trajectory(task=TASK, env_id="Some-v0", status=status, segments=segments, seed=1)


def test_content_hash_is_of_seed_and_data_alone() -> None:
    other_name = dataclasses.replace(TASK, id="valid-1", split="valid")
    assert other_name.content_hash == TASK.content_hash
    assert dataclasses.replace(TASK, seed=8).content_hash != TASK.content_hash
    assert dataclasses.replace(TASK, data={"goal": "cool the mug"}).content_hash != TASK.content_hash


def test_segment_alternates_prompt_and_sampled_tokens() -> None:
    segment = Segment((turn(0, (1, 2), (3,)), turn(1, (4,), (5, 6))))
    assert segment.token_ids == (1, 2, 3, 4, 5, 6)
    assert segment.loss_mask == (0, 0, 1, 0, 1, 1)


def test_trajectory_joins_segments_and_sums_rewards() -> None:
    played = trajectory(
        Status.COMPLETED, Segment((turn(0, (1,), (2,), 0.5, -0.25),)), Segment((turn(1, (1,), (2,), 1.0),))
    )
    assert [turn.index for turn in played.turns] == [0, 1]
    assert played.turns[0].reward == 0.25
    assert played.reward == 1.25


@pytest.mark.parametrize("status", Status)
def test_only_evidence_has_a_reward(status: Status) -> None:
    played = trajectory(status, Segment((turn(0, (1,), (2,), 1.0),)))
    is_failure = status in (Status.ENV_ERROR, Status.TIMEOUT, Status.ABORTED)
    assert status.is_evidence is not is_failure
    assert played.reward == (None if is_failure else 1.0)
    group = TrajectoryGroup(ordinal=0, task=TASK, trajectories=(played,))
    assert group.valid == (() if is_failure else (played,))


def test_completion_needs_one_entry_per_token() -> None:
    assert EMPTY_COMPLETION.token_ids == ()
    with pytest.raises(AssertionError):
        Completion(token_ids=(1, 2), logprobs=(0.0,), policy_versions=(0, 0), finish_reason=FinishReason.STOP)


def test_message_text_leaves_images_out() -> None:
    message = Message("user", (TextPart("a "), ImagePart("aGk="), TextPart("b")))
    assert message.text == str(message) == "a b"
    assert Message("tool", "out", result=ToolResult("out")).result == ToolResult("out")
    assert not ToolResult("out").is_error
    assert ToolResult("no", error_type="tool_error").is_error


def test_tool_spec_as_function() -> None:
    spec = ToolSpec("look", "Look around.", {"type": "object", "properties": {}})
    function = {"name": "look", "description": "Look around.", "parameters": {"type": "object", "properties": {}}}
    assert spec.as_function() == {"type": "function", "function": function}


def test_nouns_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASK.seed = 8  # type: ignore[misc]


# ------------------------------------------------------------------------------------------------- canonical text


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        ({"x", "y", "z"}, frozenset(["z", "y", "x"])),
        ((1, [2, (3,)]), [1, (2, [3])]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.int64(3), 3),
        (np.float64(0.1), 0.1),
        (Colour.RED, "red"),
        ({("a", 1): 0}, {("a", 1): 0}),
    ],
)
def test_equal_values_have_equal_text(one: object, other: object) -> None:
    assert canonical(one) == canonical(other)
    assert digest(one) == digest(other)


@pytest.mark.parametrize("value", [object(), {"f": print}, {object(): 1}, [b"bytes"]])
def test_what_has_no_canonical_text_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="canonical value"):
        canonical(value)


def test_keys_that_coincide_as_text_are_refused() -> None:
    with pytest.raises(TypeError, match="differ as text"):
        canonical({1: "a", "1": "b"})


def test_digest_takes_half_a_surrogate_pair() -> None:
    assert digest("\ud800") != digest("?")


@given(JSON_VALUES, JSON_VALUES)
def test_different_values_have_different_text(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (repr(_sorted(one)) == repr(_sorted(other)))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def test_digest_is_the_same_in_another_process() -> None:
    code = "from agentgym.canonical import digest; print(digest({'open': {'b', 'a', 'c'}, 'at': ('fridge', 1)}))"
    environment = {**os.environ, "PYTHONHASHSEED": "3"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert result.stdout.strip() == digest({"open": {"a", "b", "c"}, "at": ("fridge", 1)})


def test_roles_are_text() -> None:
    assert [role.value for role in RewardRole] == ["outcome", "process", "format", "cost"]


@pytest.mark.parametrize("value", [8, [8], ["Paris", None]])
def test_answers_that_are_no_texts_are_named(value: Any) -> None:
    task = Task(id="q1", split="train", seed=0, data={"answers": value})
    with pytest.raises(UsageError, match=r"task 'q1': data\['answers'\] has (8|None), expected texts"):
        _ = task.answers
