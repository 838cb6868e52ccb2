"""Tau2Airline-v0: the tools on a small airline of our own, and tau2's own files where AGENTGYM_TAU2_DOMAINS is set."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.tau2_worlds import AIRLINE_TABLES, AIRLINE_TASKS, BOOKING, MIA, write_airline

from agentgym.check import check_env
from agentgym.check.episodes import play, replay
from agentgym.check.policies import idle_action, oracle_action
from agentgym.envs.airline.tau2 import Tau2AirlineEnv, load_airline
from agentgym.envs.airline.tools import AirlineTools
from agentgym.envs.domains.database import Database
from agentgym.envs.domains.task import GoldAction
from agentgym.errors import CorruptDataError, ToolError, UsageError
from agentgym.evals.suites import load_suite, open_suite
from agentgym.types import Message, ToolCall

REAL = Path(os.environ.get(Tau2AirlineEnv.data_variable, ""), "airline")
needs_tau2_data = pytest.mark.skipif(
    not (REAL / "db.json").is_file(), reason=f"needs tau2's files in {Tau2AirlineEnv.data_variable}"
)
UPDATE = {"reservation_id": "AAAAAA", "payment_id": "gift_card_1"}


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_airline(tmp_path)


@pytest.fixture
def tools() -> AirlineTools:
    return AirlineTools(Database(AIRLINE_TABLES))


def call(tools: AirlineTools, name: str, **arguments: Any) -> Any:
    return tools.call(GoldAction(name, arguments))


# ------------------------------------------------------------------------------------------------------------- tools


def test_a_booking_takes_seats_and_payments(tools: AirlineTools) -> None:
    booked = call(tools, "book_reservation", **BOOKING)
    assert booked["reservation_id"] == "HATHAT" and booked["flights"][0]["price"] == 60
    changes = tools.db.changes()
    assert changes["users"]["mia_li_1"]["payment_methods"]["gift_card_1"]["amount"] == 10.0
    assert changes["users"]["mia_li_1"]["reservations"] == ["AAAAAA", "HATHAT"]
    assert changes["flights"]["HAT002"]["dates"]["2024-05-16"]["available_seats"]["economy"] == 8
    by_certificate = {**BOOKING, "payment_methods": [{"payment_id": "certificate_1", "amount": 90}]}
    assert call(tools, "book_reservation", **by_certificate)["reservation_id"] == "HATHAU"
    assert "certificate_1" not in tools.db.changes()["users"]["mia_li_1"]["payment_methods"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"payment_methods": [{"payment_id": "gift_card_1", "amount": 91}]}, "the price is 90"),
        ({"payment_methods": [{"payment_id": "gift_card_9", "amount": 90}]}, "not found"),
        ({"insurance": "no", "passengers": [MIA] * 3, "cabin": "business"}, "holds less|the price"),
        ({"flights": [{"flight_number": "HAT001", "date": "2024-05-14"}]}, "not available"),
        ({"flights": [{"flight_number": "HAT001", "date": "2024-05-30"}]}, "does not go"),
        ({"flights": [{"flight_number": "HAT003", "date": "2024-05-17"}], "cabin": "basic_economy"}, "enough seats"),
        ({"cabin": "first"}, "cabin"),
        ({"user_id": "nobody"}, "not found"),
    ],
)
def test_a_wrong_booking_changes_nothing(tools: AirlineTools, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolError, match=words):
        call(tools, "book_reservation", **{**BOOKING, **changed})
    assert tools.db.changes() == {}


def test_changes_of_a_reservation_settle_the_difference(tools: AirlineTools) -> None:
    kept = [{"flight_number": "HAT001", "date": "2024-05-16"}]
    same = call(tools, "update_reservation_flights", **UPDATE, cabin="economy", flights=kept)
    assert same["flights"][0]["price"] == 110 and len(same["payment_history"]) == 1, (
        "a flight that stays costs what it did"
    )
    up = call(
        tools, "update_reservation_flights", **{**UPDATE, "payment_id": "credit_card_1"}, cabin="business", flights=kept
    )
    assert up["payment_history"][-1] == {"payment_id": "credit_card_1", "amount": 190} and up["cabin"] == "business"
    down = call(tools, "update_reservation_flights", **UPDATE, cabin="basic_economy", flights=kept)
    assert down["payment_history"][-1]["amount"] == 80 - 300
    methods = tools.db.changes()["users"]["mia_li_1"]["payment_methods"]
    assert methods["gift_card_1"]["amount"] == 100 + 220
    bags = call(tools, "update_reservation_baggages", **UPDATE, total_baggages=3, nonfree_baggages=2)
    assert bags["payment_history"][-1]["amount"] == 100 and bags["total_baggages"] == 3
    with pytest.raises(ToolError, match="certificate"):
        call(
            tools,
            "update_reservation_baggages",
            **{**UPDATE, "payment_id": "certificate_1"},
            total_baggages=1,
            nonfree_baggages=0,
        )
    with pytest.raises(ToolError, match="1 passengers"):
        call(tools, "update_reservation_passengers", reservation_id="AAAAAA", passengers=[MIA, MIA])
    done = call(tools, "cancel_reservation", reservation_id="AAAAAA")
    assert done["status"] == "cancelled" and sum(one["amount"] for one in done["payment_history"]) == 0


def test_look_ups(tools: AirlineTools) -> None:
    (found,) = call(tools, "search_direct_flight", origin="SFO", destination="JFK", date="2024-05-16")
    assert found["flight_number"] == "HAT001" and found["prices"]["economy"] == 120
    assert call(tools, "search_direct_flight", origin="SFO", destination="JFK", date="2024-05-14") == []
    ((first, second),) = call(tools, "search_onestop_flight", origin="SFO", destination="BOS", date="2024-05-16")
    assert (first["date"], second["flight_number"]) == ("2024-05-16", "HAT002")
    ((_, next_day),) = call(tools, "search_onestop_flight", origin="JFK", destination="SFO", date="2024-05-16")
    assert next_day["date"] == "2024-05-17", "the first one lands on the next day"
    assert call(tools, "get_flight_status", flight_number="HAT001", date="2024-05-14") == "landed"
    assert call(tools, "list_all_airports")["LGA"] == "LaGuardia"
    assert call(tools, "calculate", expression="2 * (3 + 4)") == "14.0"
    for number in range(3):
        assert f"322132{2 + number}" in call(tools, "send_certificate", user_id="mia_li_1", amount=50)
    with pytest.raises(ToolError, match="no more"):
        call(tools, "send_certificate", user_id="mia_li_1", amount=50)


# ------------------------------------------------------------------------------------------------------- environment


def test_the_kit_finds_nothing_wrong(folder: Path) -> None:
    report = check_env(lambda: Tau2AirlineEnv(data_dir=folder), num_episodes=2)
    failures = {check.name: check.detail for check in report.failures}
    assert set(failures) <= {"splits", "state keys"}, failures  # two of three splits, of few tasks


def test_gold_actions_win_and_other_databases_do_not(folder: Path) -> None:
    env = Tau2AirlineEnv(data_dir=folder)
    assert [len(env.tasks(split)) for split in ("train", "test", "base")] == [1, 3, 4]
    for one in env.tasks("base"):
        episode = play(env, oracle_action, one, rng())
        assert episode.is_success and episode.steps[-1].info["violations"] == (), one.id
        assert not play(env, lambda env, *_: idle_action(env), one, rng()).is_success
    booking, told, cancel, transfer = env.tasks("base")
    goodbye = Message("assistant", "Is there anything else?")
    assert not replay(env, [goodbye], booking).is_success
    assert not replay(env, [goodbye], told).is_success, "the user was to be told a number"
    assert replay(env, [Message("assistant", "1 bag."), goodbye], told).is_success
    assert replay(env, [goodbye], transfer).is_success, "a transfer leaves no trace, as in tau2"
    call = Message("assistant", "", (ToolCall("cancel_reservation", {"reservation_id": "AAAAAA"}, "0"),))
    without_yes = replay(env, [call, goodbye], cancel)
    assert without_yes.is_success and without_yes.steps[-1].info["violations"] == ("wrote without the user's yes",)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("db.json", None, UsageError),
        ("db.json", '{"products": {}}', CorruptDataError),
        ("tasks.json", '[{"id": "0"}]', CorruptDataError),
        ("tasks.json", json.dumps([{**AIRLINE_TASKS[0], "initial_state": {"x": 1}}]), CorruptDataError),
        ("split_tasks.json", '{"test": ["17", "18", "19", "20"]}', CorruptDataError),
    ],
)
def test_a_folder_that_is_not_tau2s_is_refused(
    folder: Path, name: str, text: str | None, error: type[Exception]
) -> None:
    (folder / name).unlink() if text is None else (folder / name).write_text(text)
    with pytest.raises(error, match=name):
        load_airline(folder)


def test_the_suite_says_where_the_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("tau2-airline")
    monkeypatch.delenv(Tau2AirlineEnv.data_variable, raising=False)
    with pytest.raises(UsageError, match="AGENTGYM_TAU2_DOMAINS is not set"):
        open_suite(suite)
    with pytest.raises(UsageError, match="AGENTGYM_TAU2_DOMAINS to its data/tau2/domains"):
        Tau2AirlineEnv()
    monkeypatch.setenv(Tau2AirlineEnv.data_variable, str(tmp_path))
    with pytest.raises(UsageError, match="there is no airline"):
        open_suite(suite)
    (tmp_path / "airline").mkdir()
    write_airline(tmp_path / "airline")
    assert len(open_suite(suite).parts[0].tasks) == 4
    assert len(Tau2AirlineEnv().tasks("base")) == 4


@needs_tau2_data
def test_tau2s_gold_actions_win_all_of_its_tasks() -> None:
    env = Tau2AirlineEnv(data_dir=REAL)
    assert [len(env.tasks(split)) for split in ("train", "test", "base")] == [30, 20, 50]
    for one in env.tasks("base"):
        episode = play(env, oracle_action, one, rng())
        assert episode.is_success and episode.steps[-1].info["violations"] == (), one.id
