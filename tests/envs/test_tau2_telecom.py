"""Tau2Telecom-v0: agent and user act, on a small world of our own and, where AGENTGYM_TAU2_DOMAINS has them, tau2's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.fake_openai import FakeOpenAI
from testkit.tau2_worlds import LINE, TELECOM_TASKS, telecom_task, write_telecom

from agentgym.check import check_env
from agentgym.check.episodes import play, replay
from agentgym.check.policies import idle_action, oracle_action
from agentgym.envs.domains import model_user_tools
from agentgym.envs.domains.database import Database
from agentgym.envs.domains.task import EnvCall, GoldAction
from agentgym.envs.domains.users import STOP
from agentgym.envs.telecom.tau2 import Tau2TelecomEnv, load_telecom
from agentgym.envs.telecom.tools import TelecomTools
from agentgym.errors import CorruptDataError, EnvError, ToolError, UnknownNameError, UsageError
from agentgym.evals.suites import load_suite, open_suite
from agentgym.types import Message, ToolCall

REAL = Path(os.environ.get(Tau2TelecomEnv.data_variable, ""), "telecom")
needs_tau2_data = pytest.mark.skipif(
    not (REAL / "db.toml").is_file(), reason=f"needs tau2's files in {Tau2TelecomEnv.data_variable}"
)
GOODBYE = Message("assistant", "Is there anything else?")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_telecom(tmp_path)


@pytest.fixture
def world(folder: Path) -> TelecomTools:
    tools = TelecomTools(Database(load_telecom(folder).tables))
    tools.set_up(EnvCall("user", "set_user_info", {"name": "Mia Li", "phone_number": "555-1"}))
    return tools


def on_phone(world: TelecomTools, name: str, **arguments: Any) -> str:
    said = str(world.phone.call(GoldAction(name, arguments, "user")))
    world.sync()
    return said


def set_up(world: TelecomTools, name: str, **arguments: Any) -> None:
    world.set_up(EnvCall("user", name, arguments))


# ------------------------------------------------------------------------------------------------- phone and database


def test_what_is_broken_on_a_phone_is_mended_by_what_mends_it(world: TelecomTools) -> None:
    phone = world.phone
    assert phone.speed() == (220.0, "Excellent") and phone.has_mms()
    set_up(world, "turn_airplane_mode_on")
    assert phone.speed() is None and "Airplane Mode" in on_phone(world, "check_status_bar")
    assert "now off" in on_phone(world, "toggle_airplane_mode") and phone.has_data()
    set_up(world, "unseat_sim_card")
    assert on_phone(world, "check_sim_status") == "The SIM card is missing." and not phone.has_data()
    on_phone(world, "reseat_sim_card")
    set_up(world, "break_vpn")
    assert phone.speed() == (27.5, "Good")
    on_phone(world, "disconnect_vpn")
    on_phone(world, "set_network_mode_preference", mode="2g_only")
    assert phone.speed() == (0.05, "Very Poor") and not phone.has_mms()
    assert "choose one of" in on_phone(world, "set_network_mode_preference", mode="6g")
    on_phone(world, "set_network_mode_preference", mode="4g_5g_preferred")
    set_up(world, "break_apn_settings")
    on_phone(world, "reset_apn_settings")
    assert not phone.has_data(), "only a restart resets them"
    assert "reset" in on_phone(world, "reboot_device") and phone.has_data()
    set_up(world, "remove_app_permission", app_name="messaging", permission="sms")
    assert not phone.has_mms() and "did not work" in on_phone(
        world, "grant_app_permission", app_name="camera", permission="sms"
    )
    on_phone(world, "grant_app_permission", app_name="messaging", permission="SMS")
    assert phone.has_mms()


def test_a_bill_is_asked_for_paid_and_noted_on_both_sides(world: TelecomTools) -> None:
    world.set_up(
        EnvCall("assistant", "suspend_line_for_overdue_bill", {**LINE, "new_bill_id": "B9", "contract_ended": True})
    )
    set_up(world, "simulate_network_search")
    assert world.phone.device["network_connection_status"] == "no_service"
    assert on_phone(world, "make_payment") == "You have not been asked to pay."
    world.call(GoldAction("send_payment_request", {"customer_id": "C1", "bill_id": "B9"}))
    world.sync()
    assert on_phone(world, "check_payment_request") == "You have been asked to pay bill B9, 40.0 dollars."
    with pytest.raises(ToolError, match="awaits payment"):
        world.call(GoldAction("send_payment_request", {"customer_id": "C1", "bill_id": "B1"}))
    on_phone(world, "make_payment")
    assert world.need("bills", "B9", "bill")["status"] == "Paid" and world.phone.around["payment_request"] is None
    world.call(GoldAction("resume_line", LINE))
    world.sync()
    assert not world.phone.has_data(), "the phone has not searched for a network yet"
    on_phone(world, "reboot_device")
    assert world.phone.has_data()


def test_data_that_are_bought_go_onto_the_next_bill(world: TelecomTools) -> None:
    world.set_up(EnvCall("assistant", "set_data_usage", {**LINE, "data_used_gb": 5.0}))
    assert not world.phone.has_data()
    for _ in range(2):
        said = world.call(GoldAction("refuel_data", {**LINE, "gb_amount": 1.5}))
    world.sync()
    assert (said["charge"], said["new_data_refueling_gb"]) == (3.0, 3.0) and world.phone.has_data()
    bill = world.need("bills", world.need("customers", "C1", "customer")["bill_ids"][-1], "bill")
    assert (bill["status"], bill["total_due"], len(bill["line_items"])) == ("Draft", 6.0, 2)
    with pytest.raises(ToolError, match="above 0"):
        world.call(GoldAction("refuel_data", {**LINE, "gb_amount": 0}))
    with pytest.raises(ToolError, match="no line"):
        world.call(GoldAction("get_data_usage", {**LINE, "line_id": "L2"}))


def test_look_ups(world: TelecomTools) -> None:
    assert world.call(GoldAction("get_customer_by_phone", {"phone_number": "555-1"}))["customer_id"] == "C1"
    assert world.call(GoldAction("get_customer_by_name", {"full_name": "mia li", "dob": "1990-04-05"}))
    assert world.call(GoldAction("get_details_by_id", {"id": "P1"}))["name"] == "Basic"
    for wrong in ({"id": "X1"}, {"id": "L9"}):
        with pytest.raises(ToolError):
            world.call(GoldAction("get_details_by_id", wrong))


# ------------------------------------------------------------------------------------------------------- environment


def test_the_kit_finds_nothing_wrong(folder: Path) -> None:
    report = check_env(lambda: Tau2TelecomEnv(data_dir=folder), num_episodes=2)
    failures = {check.name: check.detail for check in report.failures}
    assert set(failures) <= {"splits", "state keys"}, failures  # two of three splits, of few tasks


def test_gold_actions_of_both_sides_win_and_doing_nothing_does_not(folder: Path) -> None:
    env = Tau2TelecomEnv(data_dir=folder)
    for one in env.tasks("base"):
        assert play(env, oracle_action, one, rng()).is_success, one.id
        assert not replay(env, [GOODBYE], one).is_success, one.id
        assert not play(env, lambda env, *_: idle_action(env), one, rng()).is_success, one.id


def test_each_dropped_action_of_either_side_loses(folder: Path) -> None:
    env = Tau2TelecomEnv(data_dir=folder)
    num_dropped = 0
    for one in env.tasks("base"):
        actions = play(env, oracle_action, one, rng()).actions
        for place in range(len(actions) - 1):
            episode = replay(env, [*actions[:place], *actions[place + 1 :]], one)
            assert not episode.is_success, (one.id, place)
            num_dropped += 1
    assert num_dropped == 13


def test_the_agent_cannot_touch_the_phone_and_sees_what_the_user_says(folder: Path) -> None:
    env = Tau2TelecomEnv(data_dir=folder)
    said = env.reset(options={"task": "abroad", "split": "base"})[0][0].text
    assert "Ask for a restart." in said and "Be kind." in said
    assert {tool.name for tool in env.tools} & {"toggle_roaming", "make_payment"} == set()
    observation, _, _, _, info = env.step(Message("assistant", "", (ToolCall("toggle_roaming", {}, "0"),)))
    assert "unknown tool" in observation[0].text and info["user_calls"] == ()
    observation, _, _, _, info = env.step(Message("assistant", "Please do this:\ntoggle_roaming"))
    assert "Data roaming is now on" in observation[0].text
    assert [(one.name, dict(one.arguments)) for one in info["user_calls"]] == [("toggle_roaming", {})]
    _, _, is_over, _, info = env.step(GOODBYE)
    assert is_over and info["failed_checks"] == ("assert_mobile_data_status", "assert_internet_speed")
    workflow = Tau2TelecomEnv(data_dir=folder, support="workflow")
    assert "First, a restart." in workflow.reset(options={"task": 0})[0][0].text
    with pytest.raises(UnknownNameError, match="support"):
        Tau2TelecomEnv(data_dir=folder, support="none")  # type: ignore[arg-type]


def test_a_snapshot_holds_the_phone(folder: Path) -> None:
    env = Tau2TelecomEnv(data_dir=folder)
    env.reset(options={"task": "abroad", "split": "base"})
    env.step(env.oracle())
    env.step(env.oracle())
    snapshot = env.snapshot()
    env.step("toggle_roaming")
    other = Tau2TelecomEnv(data_dir=folder)
    other.restore(snapshot)
    assert other.toolkit.phone.device["roaming_enabled"] and not env.toolkit.phone.device["roaming_enabled"]
    assert other.state_key() == snapshot.state_key


# -------------------------------------------------------------------------------------------------- a model as the user


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    listed = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(made)
    ]
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": listed}}]}


def says(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    made = FakeOpenAI(lambda _: says("Hm."))
    yield made
    made.close()


def test_a_model_that_plays_the_user_acts_on_the_phone(folder: Path, server: FakeOpenAI) -> None:
    answers = [
        says("My data do not work abroad."),
        calls(("toggle_roaming", {}), ("toggle_data_saver_mode", {})),
        calls(("fly", {}), ("check_app_status", {"app": 1})),
        says("Roaming is on now."),
        says(f"It works. {STOP}"),
    ]
    server.play = lambda _: answers.pop(0)
    env = Tau2TelecomEnv(data_dir=folder, user={"url": server.url, "model": "m"})
    assert env.reset(options={"task": "abroad", "split": "base"})[0][0].text.endswith("My data do not work abroad.")
    env.step(Message("assistant", "", (ToolCall("enable_roaming", LINE, "0"),)))
    snapshot = env.snapshot()
    observation, _, _, _, info = env.step(Message("assistant", "Turn roaming on and the data saver off."))
    assert observation[0].text == "Roaming is on now.", "the calls are not shown to the agent"
    assert [one.name for one in info["user_calls"]] == [
        "toggle_roaming",
        "toggle_data_saver_mode",
        "fly",
        "check_app_status",
    ]
    assert info["user_calls"][2].result.startswith("Error: unknown tool")
    _, reward, is_over, _, _ = env.step(GOODBYE)
    assert is_over and reward == 1.0
    assert len(server.requests[0]["tools"]) == 30
    roles = [one["role"] for one in server.requests[3]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool", "tool", "assistant", "tool", "tool"]
    assert len({request["seed"] for request in server.requests}) == 5
    env.restore(snapshot)
    assert not env.toolkit.phone.device["roaming_enabled"]


def test_a_model_that_only_calls_or_says_nothing_is_a_failure(
    folder: Path, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_user_tools, "MAX_CALLS", 3)
    env = Tau2TelecomEnv(data_dir=folder, user={"url": server.url, "model": "m"})
    server.play = lambda _: calls(("check_status_bar", {}))
    with pytest.raises(EnvError, match="3 calls without a word"):
        env.reset(options={"task": 0})
    server.play = lambda _: says("")
    with pytest.raises(EnvError, match="said nothing"):
        env.reset(options={"task": 0})
    server.play = lambda _: {"choices": []}
    with pytest.raises(EnvError, match="no completion"):
        env.reset(options={"task": 0})


# ------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("user_db.toml", None, UsageError),
        ("tech_support_manual.md", None, UsageError),
        ("db.toml", "[[lines]]\nphone = 1", CorruptDataError),
        ("db.toml", "lines = [", CorruptDataError),
        ("tasks.json", '[{"id": "0"}]', CorruptDataError),
        ("tasks.json", json.dumps([telecom_task("x", [("user", "fly", {})], [], [])]), CorruptDataError),
        ("tasks.json", json.dumps([telecom_task("x", [], [], [], ["DB"])]), CorruptDataError),
        ("tasks.json", json.dumps([{**TELECOM_TASKS[0], "initial_state": {"message_history": [1]}}]), CorruptDataError),
    ],
)
def test_a_folder_that_is_not_tau2s_is_refused(
    folder: Path, name: str, text: str | None, error: type[Exception]
) -> None:
    (folder / name).unlink() if text is None else (folder / name).write_text(text)
    with pytest.raises(error, match=name):
        load_telecom(folder)


def test_the_suite_says_where_the_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("tau2-telecom")
    monkeypatch.delenv(Tau2TelecomEnv.data_variable, raising=False)
    with pytest.raises(UsageError, match="AGENTGYM_TAU2_DOMAINS is not set"):
        open_suite(suite)
    monkeypatch.setenv(Tau2TelecomEnv.data_variable, str(tmp_path))
    (tmp_path / "telecom").mkdir()
    write_telecom(tmp_path / "telecom")
    assert len(open_suite(suite).parts[0].tasks) == 5


@needs_tau2_data
def test_tau2s_gold_actions_win_all_of_its_tasks() -> None:
    env = Tau2TelecomEnv(data_dir=REAL)
    assert [len(env.tasks(split)) for split in ("train", "test", "base", "full")] == [74, 40, 114, 2285]
    for one in env.tasks("base"):
        assert play(env, oracle_action, one, rng()).is_success, one.id
        assert not replay(env, [GOODBYE], one).is_success, one.id
