"""The record: what is read is what was written, bit for bit, and a damaged file says so."""

import gzip
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym.errors import CorruptDataError
from agentgym.rollout.record import (
    GroupRecord,
    append_json_line,
    read_json_lines,
    read_json_object,
    read_records,
    record_path,
    recorded_steps,
    write_records,
)
from agentgym.types import (
    Completion,
    FinishReason,
    ImagePart,
    Latency,
    MalformedCall,
    Message,
    RewardPart,
    RewardRole,
    Segment,
    Status,
    Task,
    TextPart,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
    TurnCredit,
)

TEXT = st.text(st.characters(), max_size=12)
FLOATS = st.floats(allow_nan=False)
IDS = st.integers(0, 2**31)
DATA = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | FLOATS | TEXT | st.lists(TEXT, max_size=2))
CALLS = st.builds(ToolCall, TEXT, DATA, TEXT) | st.builds(MalformedCall, st.tuples(IDS, IDS), TEXT, TEXT)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool"]),
    TEXT | st.tuples(st.builds(TextPart, TEXT), st.builds(ImagePart, st.just("aGk="))),
    st.lists(CALLS, max_size=2).map(tuple),
    st.none() | st.builds(ToolResult, TEXT, TEXT, TEXT, st.none() | TEXT),
)
PARTS = st.builds(RewardPart, TEXT, FLOATS, st.sampled_from(RewardRole))


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    size = draw(st.integers(0, 4))

    def several(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(values, min_size=size, max_size=size)))

    return Completion(
        token_ids=several(IDS),
        logprobs=several(FLOATS),
        policy_versions=several(IDS),
        finish_reason=draw(st.sampled_from(FinishReason)),
    )


TURNS = st.builds(
    Turn,
    index=IDS,
    prompt_ids=st.lists(IDS, max_size=4).map(tuple),
    completion=completions(),
    action=MESSAGES,
    replies=st.lists(MESSAGES, max_size=2).map(tuple),
    reward_parts=st.lists(PARTS, max_size=2).map(tuple),
    state_key=st.none() | TEXT,
    is_valid=st.booleans(),
    is_void=st.booleans(),
    latency=st.builds(Latency, FLOATS, FLOATS, FLOATS),
)
TASKS = st.builds(Task, id=TEXT, split=st.sampled_from(["train", "test"]), seed=IDS, data=DATA)
TRAJECTORIES = st.builds(
    Trajectory,
    task=TASKS,
    env_id=TEXT,
    status=st.sampled_from(Status),
    segments=st.lists(st.builds(Segment, st.lists(TURNS, max_size=2).map(tuple)), max_size=2).map(tuple),
    seed=IDS,
    success=st.none() | st.booleans(),
    error=st.none() | TEXT,
    num_retries=IDS,
)
CREDITS = st.builds(
    TurnCredit,
    shaped_reward=FLOATS,
    return_to_go=FLOATS,
    advantage=FLOATS,
    anchor_group=st.integers(-1, 9),
    anchor_size=IDS,
    gate_open=st.booleans(),
)
RECORDS = st.builds(
    GroupRecord,
    group=st.builds(
        TrajectoryGroup, ordinal=IDS, task=TASKS, trajectories=st.lists(TRAJECTORIES, max_size=2).map(tuple)
    ),
    credit=st.lists(st.lists(CREDITS, max_size=2).map(tuple), max_size=2).map(tuple),
    dropped=st.none() | TEXT,
)


def record_of_logprobs(*logprobs: float) -> GroupRecord:
    completion = Completion(
        token_ids=(1,) * len(logprobs),
        logprobs=logprobs,
        policy_versions=(0,) * len(logprobs),
        finish_reason=FinishReason.STOP,
    )
    task = Task(id="train-0", split="train", seed=0)
    turn = Turn(index=0, completion=completion, action=Message("assistant", "x"))
    trajectory = Trajectory(task=task, env_id="Some-v0", status=Status.COMPLETED, segments=(Segment((turn,)),), seed=0)
    return GroupRecord(group=TrajectoryGroup(ordinal=0, task=task, trajectories=(trajectory,)))


def logprobs_of(record: GroupRecord) -> tuple[float, ...]:
    return record.group.trajectories[0].turns[0].completion.logprobs


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(records=st.lists(RECORDS, max_size=2).map(tuple))
def test_round_trip(records: tuple[GroupRecord, ...], tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl.gz"
    write_records(path, records)
    assert read_records(path) == records


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.floats() | st.sampled_from([-0.0, 5e-324, -math.inf, math.nan]), min_size=1))
def test_floats_come_back_bit_for_bit(values: list[float], tmp_path: Path) -> None:
    values = [math.nan if math.isnan(value) else value for value in values]  # JSON knows one nan
    path = tmp_path / "step.jsonl.gz"
    write_records(path, [record_of_logprobs(*values)])
    (again,) = read_records(path)
    assert [struct.pack("d", value) for value in logprobs_of(again)] == [struct.pack("d", value) for value in values]


def test_half_a_surrogate_pair_survives(tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl.gz"
    task = Task(id="train-0", split="train", seed=0, data={"text": "\ud800"})
    record = GroupRecord(group=TrajectoryGroup(ordinal=0, task=task, trajectories=()))
    write_records(path, [record])
    assert read_records(path) == (record,)


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "step.jsonl.gz" for folder in ("a", "b")]
    for path in paths:
        write_records(path, [record_of_logprobs(-0.5)])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_steps_of_a_run(tmp_path: Path) -> None:
    assert recorded_steps(tmp_path) == ()
    for step in (10, 2):
        write_records(record_path(tmp_path, step), [])
    record_path(tmp_path, 11).with_suffix(".gz.partial").touch()
    assert recorded_steps(tmp_path) == (2, 10)


# -------------------------------------------------------------------------------------------------------- damage


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match=r"no record at .*step\.jsonl\.gz"):
        read_records(tmp_path / "step.jsonl.gz")


def test_a_cut_or_changed_file_is_never_read_as_something_else(tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl.gz"
    records = [record_of_logprobs(-0.5, -0.25)] * 3
    write_records(path, records)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptDataError, match=r"cut short or changed|not JSON"):
            read_records(path)
    path.write_bytes(whole[:40] + b"\xff\xff\xff" + whole[43:])
    with pytest.raises(CorruptDataError):
        read_records(path)
    path.write_text("not gzip")
    with pytest.raises(CorruptDataError, match="cut short or changed"):
        read_records(path)


def test_what_is_not_a_record_is_named_by_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl.gz"
    write_records(path, [record_of_logprobs(-0.5)])
    good = gzip.decompress(path.read_bytes())
    row = json.loads(good)
    row["group"]["ordinal"] = "first"
    path.write_bytes(gzip.compress(good + json.dumps(row).encode() + b"\n"))
    with pytest.raises(CorruptDataError, match=r"line 2: not a rollout record \(group\.ordinal"):
        read_records(path)
    path.write_bytes(gzip.compress(good + b"{nonsense\n"))
    with pytest.raises(CorruptDataError, match="line 2: not JSON"):
        read_records(path)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl.gz"
    write_records(path, [record_of_logprobs(-0.5)])

    def interrupted() -> Any:
        yield record_of_logprobs(-0.1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(path, interrupted())
    (kept,) = read_records(path)
    assert logprobs_of(kept) == (-0.5,)


# ------------------------------------------------------------------------------------------------------ JSON lines


def test_json_lines_leave_out_a_line_that_a_kill_cut(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    assert read_json_lines(path) == []
    for step in range(2):
        append_json_line(path, {"step": step})
    with open(path, "a") as out:
        out.write('{"step": 2, "los')
    assert read_json_lines(path) == [{"step": 0}, {"step": 1}]


@pytest.mark.parametrize(
    ("last", "kept"), [(b'{"step": 2, "los', []), ('{"said": "ö'.encode()[:-1], []), (b'{"step": 2}', [{"step": 2}])]
)
def test_a_line_is_appended_in_place_of_one_that_a_kill_cut(last: bytes, kept: list[Any], tmp_path: Path) -> None:
    """Such as the journal of a resumed run, or a judge's verdicts."""
    path = tmp_path / "journal.jsonl"
    append_json_line(path, {"step": 0})
    with open(path, "ab") as out:
        out.write(last)
    assert read_json_lines(path) == [{"step": 0}, *kept]
    append_json_line(path, {"step": 3})
    assert read_json_lines(path) == [{"step": 0}, *kept, {"step": 3}]


def test_json_lines_refuse_damage_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(CorruptDataError, match="line 2: not JSON"):
        read_json_lines(path)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_metrics_and_records_are_json_whatever_they_hold(tmp_path: Path) -> None:
    append_json_line(tmp_path / "rows.jsonl", {"loss": math.nan, "gap": -math.inf, "said": 'NaN "Infinity'})
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=refuse) == {"loss": None, "gap": None, "said": 'NaN "Infinity'}
    task = Task(id="t", split="train", seed=0, data={"far": math.inf, "said": "NaN, -Infinity"})
    turn = Turn(index=0, action=Message("assistant", ""), latency=Latency(env_s=math.nan))
    trajectory = Trajectory(
        task=task, env_id="E-v0", status=Status.COMPLETED, segments=(Segment((turn,)),), seed=0, success=True
    )
    group = TrajectoryGroup(ordinal=0, task=task, trajectories=(trajectory,))
    write_records(tmp_path / "step.jsonl.gz", [GroupRecord(group=group, columns={"drift": [-math.inf]})])
    with gzip.open(tmp_path / "step.jsonl.gz") as lines:
        json.loads(lines.read(), parse_constant=refuse)
    (read,) = read_records(tmp_path / "step.jsonl.gz")
    assert (read.group.task, read.columns) == (task, {"drift": [-math.inf]})
    assert math.isnan(read.group.trajectories[0].turns[0].latency.env_s)


@pytest.mark.parametrize("read", [read_json_object, read_json_lines, read_records])
def test_json_nested_too_deeply_is_corrupt_data(read: Any, tmp_path: Path) -> None:
    text = ("[" * 100_000 + "\n" + "{}" + "\n").encode()
    path = tmp_path / "deep"
    path.write_bytes(gzip.compress(text) if read is read_records else text)
    with pytest.raises(CorruptDataError, match="not JSON"):
        read(path)
