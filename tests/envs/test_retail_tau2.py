"""tau2's format: a small folder written here, and tau2's own retail domain where ``AGENTGYM_TAU2_DATA`` names it.

That our tools leave behind what tau2's do is measured by ``benchmarks/retail/parity.py``, which needs tau2 itself.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from testkit.retail_tables import TABLES
from testkit.retail_tasks import CANCEL, TASKS, write_retail

from agentgym.check import check_env
from agentgym.check.episodes import play, replay
from agentgym.check.policies import oracle_action
from agentgym.envs.domains.database import Database
from agentgym.envs.retail.tau2 import DATA_VARIABLE, Tau2RetailEnv, Tau2RetailTools, load_tau2
from agentgym.errors import CorruptDataError, ToolError, UsageError
from agentgym.types import Message, ToolCall

REAL = os.environ.get(DATA_VARIABLE, "")
needs_tau2_data = pytest.mark.skipif(
    not Path(REAL, "db.json").is_file(), reason=f"needs tau2's files in {DATA_VARIABLE}"
)

NUM_TASKS, NUM_ACTIONS, NUM_REFUSED = 114, 550, 18


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_retail(tmp_path)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_the_kit_finds_nothing_wrong(folder: Path) -> None:
    report = check_env(lambda: Tau2RetailEnv(data_dir=folder), num_episodes=2)
    failures = {check.name: check.detail for check in report.failures}
    assert set(failures) <= {"splits", "state keys"}, failures  # two of three splits, of one task and two


def test_gold_actions_win_in_every_split(folder: Path) -> None:
    env = Tau2RetailEnv(data_dir=folder)
    assert [len(env.tasks(split)) for split in ("train", "test", "base")] == [1, 2, 3]
    for one in env.tasks("base"):
        episode = play(env, oracle_action, one, rng())
        assert episode.is_success and episode.steps[-1].info["violations"] == (), one.id
    assert "Be kind." in env.reset(options={"task": "0", "split": "base"})[0][0].text
    with pytest.raises(UsageError, match="valid"):
        env.tasks("valid")


def test_a_dropped_or_an_added_change_or_silence_scores_nothing(folder: Path) -> None:
    env = Tau2RetailEnv(data_dir=folder)
    first, second, _ = env.tasks("base")
    *actions, last = play(env, oracle_action, first, rng()).actions
    assert not replay(env, [*actions[:-1], last], first).is_success
    extra = Message("assistant", "", (ToolCall("cancel_pending_order", dict(CANCEL[1]), "0"),))
    assert not replay(env, [extra, *play(env, oracle_action, second, rng()).actions], second).is_success
    *actions, last = play(env, oracle_action, second, rng()).actions
    assert "1041.37" in last.text
    silent = replay(env, [*actions, Message("assistant", "Anything else?")], second)
    assert not silent.is_success and silent.steps[-1].info["untold"] == ("1041.37",)
    assert silent.steps[-1].info["is_database_right"]


def test_a_task_that_was_mended_since_is_refused(folder: Path) -> None:
    env = Tau2RetailEnv(data_dir=folder)
    old = replace(env.tasks("base")[0], data={"task": "0", "content": "of another day"})
    with pytest.raises(UsageError, match="check out"):
        env.reset(options={"task": old})
    with pytest.raises(UsageError, match="no task 'x'"):
        env.reset(options={"task": replace(old, data={"task": "x"})})


def test_a_transfer_leaves_no_trace_as_in_tau2(folder: Path) -> None:
    env = Tau2RetailEnv(data_dir=folder)
    task = env.tasks("base")[2]
    assert replay(env, [Message("assistant", "Anything else?")], task).is_success


def test_several_modified_items_get_the_last_ones_price_as_in_tau2() -> None:
    toolkit = Tau2RetailTools(Database(TABLES))
    swap = {"item_ids": ["i1", "i3"], "new_item_ids": ["i2", "i1"], "payment_method_id": "paypal"}
    done = toolkit.modify_pending_order_items("#1", **swap)  # type: ignore[arg-type]
    assert [(item["item_id"], item["price"]) for item in done["items"]] == [("i2", 10.1), ("i1", 10.1), ("i1", 10.1)]
    assert done["payment_history"][-1]["amount"] == 20.3 - 10.1 + 10.1 - 9.05


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("db.json", None, UsageError),
        ("policy.md", None, UsageError),
        ("db.json", "{", CorruptDataError),
        ("db.json", '{"flights": {}}', CorruptDataError),
        ("tasks.json", '[{"id": "0"}]', CorruptDataError),
        ("tasks.json", json.dumps([{**TASKS[0], "initial_state": {"x": 1}}]), CorruptDataError),
        ("split_tasks.json", '{"test": ["17"]}', CorruptDataError),
    ],
)
def test_a_folder_that_is_not_tau2s_is_refused(
    folder: Path, name: str, text: str | None, error: type[Exception]
) -> None:
    (folder / name).unlink() if text is None else (folder / name).write_text(text)
    with pytest.raises(error, match=name):
        load_tau2(folder)


def test_without_a_folder_the_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=DATA_VARIABLE):
        Tau2RetailEnv()


# ----------------------------------------------------------------------------------------------------- tau2's own data


@needs_tau2_data
def test_tau2s_gold_actions_win_all_of_its_tasks() -> None:
    env = Tau2RetailEnv(data_dir=REAL)
    tasks = env.tasks("base")
    assert len(tasks) == NUM_TASKS
    for one in tasks:
        episode = play(env, oracle_action, one, rng())
        assert episode.is_success and episode.steps[-1].info["violations"] == (), one.id


@needs_tau2_data
def test_tau2s_recorded_wrong_turns_are_refused_as_recorded() -> None:
    data = load_tau2(REAL)
    num_actions, refused = 0, []
    for one in data.tasks.values():
        toolkit = Tau2RetailTools(Database(data.tables))
        for action in one.actions:
            num_actions += 1
            try:
                toolkit.call(action)
            except ToolError:
                refused.append(one.id)
    assert (num_actions, len(refused), len(set(refused))) == (NUM_ACTIONS, NUM_REFUSED, 15)


@needs_tau2_data
def test_dropping_a_change_of_tau2s_scores_nothing() -> None:
    env = Tau2RetailEnv(data_dir=REAL)
    num_dropped = 0
    for one in env.tasks("base")[::6]:
        actions = play(env, oracle_action, one, rng()).actions
        case = env.case
        changed = env.toolkit.db.hash() != Database(case.tables).hash()
        kept = [action for action in actions if not (action.calls and _is_write(action))]
        episode = replay(env, kept, one)
        assert episode.is_success != changed, one.id
        num_dropped += changed
    assert num_dropped > 10


def _is_write(action: Message) -> bool:
    return any(isinstance(call, ToolCall) and call.name in Tau2RetailTools.writes for call in action.calls)
