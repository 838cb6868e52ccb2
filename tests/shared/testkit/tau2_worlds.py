"""Small invented data in the file formats of tau2-bench's airline and telecom domains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

AIRLINE_TABLES: dict[str, Any] = {
    "flights": {
        "HAT001": {
            "flight_number": "HAT001",
            "origin": "SFO",
            "destination": "JFK",
            "scheduled_departure_time_est": "06:00:00",
            "scheduled_arrival_time_est": "11:30:00",
            "dates": {
                "2024-05-16": {
                    "status": "available",
                    "available_seats": {"basic_economy": 3, "economy": 2, "business": 1},
                    "prices": {"basic_economy": 80, "economy": 120, "business": 300},
                },
                "2024-05-14": {"status": "landed", "actual_departure_time_est": "x", "actual_arrival_time_est": "y"},
            },
        },
        "HAT002": {
            "flight_number": "HAT002",
            "origin": "JFK",
            "destination": "BOS",
            "scheduled_departure_time_est": "13:00:00",
            "scheduled_arrival_time_est": "14:10:00+1",
            "dates": {
                day: {
                    "status": "available",
                    "available_seats": {"basic_economy": 9, "economy": 9, "business": 9},
                    "prices": {"basic_economy": 40, "economy": 60, "business": 150},
                }
                for day in ("2024-05-16", "2024-05-17")
            },
        },
        "HAT003": {
            "flight_number": "HAT003",
            "origin": "BOS",
            "destination": "SFO",
            "scheduled_departure_time_est": "15:00:00",
            "scheduled_arrival_time_est": "20:10:00",
            "dates": {
                "2024-05-17": {
                    "status": "available",
                    "available_seats": {"basic_economy": 0, "economy": 1, "business": 1},
                    "prices": {"basic_economy": 90, "economy": 110, "business": 210},
                }
            },
        },
    },
    "users": {
        "mia_li_1": {
            "user_id": "mia_li_1",
            "name": {"first_name": "Mia", "last_name": "Li"},
            "address": {"address1": "1 Elm Street", "city": "Seattle", "country": "USA", "state": "WA", "zip": "98101"},
            "email": "mia@example.com",
            "dob": "1990-04-05",
            "payment_methods": {
                "credit_card_1": {"source": "credit_card", "id": "credit_card_1", "brand": "visa", "last_four": "1"},
                "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "amount": 100},
                "certificate_1": {"source": "certificate", "id": "certificate_1", "amount": 500},
            },
            "saved_passengers": [],
            "membership": "silver",
            "reservations": ["AAAAAA"],
        }
    },
    "reservations": {
        "AAAAAA": {
            "reservation_id": "AAAAAA",
            "user_id": "mia_li_1",
            "origin": "SFO",
            "destination": "JFK",
            "flight_type": "one_way",
            "cabin": "economy",
            "flights": [
                {
                    "flight_number": "HAT001",
                    "origin": "SFO",
                    "destination": "JFK",
                    "date": "2024-05-16",
                    "price": 110,
                }
            ],
            "passengers": [{"first_name": "Mia", "last_name": "Li", "dob": "1990-04-05"}],
            "payment_history": [{"payment_id": "credit_card_1", "amount": 110}],
            "created_at": "2024-05-01T10:00:00",
            "total_baggages": 1,
            "nonfree_baggages": 0,
            "insurance": "no",
        }
    },
}
MIA = {"first_name": "Mia", "last_name": "Li", "dob": "1990-04-05"}
BOOKING: dict[str, Any] = {
    "user_id": "mia_li_1",
    "origin": "JFK",
    "destination": "BOS",
    "flight_type": "one_way",
    "cabin": "economy",
    "flights": [{"flight_number": "HAT002", "date": "2024-05-16"}],
    "passengers": [MIA],
    "payment_methods": [{"payment_id": "gift_card_1", "amount": 90}],
    "total_baggages": 1,
    "nonfree_baggages": 0,
    "insurance": "yes",
}
"""A booking that costs 60 for the flight and 30 for the insurance."""


def task(name: str, domain: str, *actions: tuple[str, dict[str, Any]], **criteria: Any) -> dict[str, Any]:
    """Return a record of ``tasks.json``."""
    return {
        "id": name,
        "user_scenario": {
            "persona": None,
            "instructions": {
                "domain": domain,
                "reason_for_call": "You want help.",
                "known_info": "You are Mia Li, user id mia_li_1, phone number 555-1.",
                "unknown_info": None,
                "task_instructions": "You are in a hurry.",
            },
        },
        "initial_state": None,
        "evaluation_criteria": {
            "actions": [
                {"action_id": f"{name}_{place}", "name": tool, "arguments": arguments, "info": None}
                for place, (tool, arguments) in enumerate(actions)
            ],
            "communicate_info": None,
            "nl_assertions": None,
            "reward_basis": ["DB", "COMMUNICATE"],
            **criteria,
        },
    }


AIRLINE_TASKS = [
    task("0", "airline", ("get_user_details", {"user_id": "mia_li_1"}), ("book_reservation", BOOKING)),
    task("1", "airline", ("get_reservation_details", {"reservation_id": "AAAAAA"}), communicate_info=["1"]),
    task("2", "airline", ("cancel_reservation", {"reservation_id": "AAAAAA"})),
    task("3", "airline", ("transfer_to_human_agents", {"summary": "x"})),
]


def write_airline(folder: Path) -> Path:
    """Write an airline domain."""
    (folder / "db.json").write_text(json.dumps(AIRLINE_TABLES))
    (folder / "tasks.json").write_text(json.dumps(AIRLINE_TASKS))
    (folder / "policy.md").write_text("# Airline policy\nBe kind.\n")
    splits = {"train": ["0"], "test": ["1", "2", "3"], "base": ["0", "1", "2", "3"]}
    (folder / "split_tasks.json").write_text(json.dumps(splits))
    return folder


TELECOM_DB = """
[[plans]]
plan_id = "P1"
name = "Basic"
data_limit_gb = 5.0
price_per_month = 40.0
data_refueling_price_per_gb = 2.0

[[devices]]
device_id = "D1"
device_type = "phone"
model = "X"
is_esim_capable = true

[[lines]]
line_id = "L1"
phone_number = "555-1"
status = "Active"
plan_id = "P1"
device_id = "D1"
data_used_gb = 3.5
roaming_enabled = false

[[bills]]
bill_id = "B1"
customer_id = "C1"
period_start = "2025-01-01"
period_end = "2025-01-31"
issue_date = "2025-01-01"
total_due = 40.0
due_date = "2025-01-15"
status = "Paid"

[[customers]]
customer_id = "C1"
full_name = "Mia Li"
date_of_birth = "1990-04-05"
email = "mia@example.com"
phone_number = "555-1"
account_status = "Active"
line_ids = ["L1"]
bill_ids = ["B1"]

[customers.address]
street = "1 Elm Street"
city = "Seattle"
state = "WA"
zip_code = "98101"
"""
USER_DB = """
[device]
battery_level = 70

[device.app_statuses.messaging]
app_name = "messaging"

[device.app_statuses.messaging.permissions]
sms = true
storage = true
phone = true
network = false
"""
LINE = {"customer_id": "C1", "line_id": "L1"}


def telecom_task(
    name: str,
    setup: Sequence[tuple[str, str, dict[str, Any]]],
    actions: Sequence[tuple[str, str, dict[str, Any]]],
    checks: Sequence[tuple[str, str, dict[str, Any]]],
    basis: Sequence[str] = ("ENV_ASSERTION",),
) -> dict[str, Any]:
    """Return a record of telecom's ``tasks.json``; calls are sides, names and arguments."""
    user = ("user", "set_user_info", {"name": "Mia Li", "phone_number": "555-1"})
    made = task(name, "telecom")
    made["initial_state"] = {
        "initialization_data": None,
        "initialization_actions": [
            {"env_type": side, "func_name": function, "arguments": arguments}
            for side, function, arguments in (user, *setup)
        ],
        "message_history": None,
    }
    made["evaluation_criteria"] = {
        "actions": [
            {
                "action_id": f"{place}",
                "requestor": side,
                "name": tool,
                "arguments": arguments,
                "compare_args": [] if tool == "transfer_to_human_agents" else None,
            }
            for place, (side, tool, arguments) in enumerate(actions)
        ],
        "env_assertions": [
            {"env_type": side, "func_name": function, "arguments": arguments, "assert_value": True, "message": None}
            for side, function, arguments in checks
        ],
        "communicate_info": None,
        "nl_assertions": None,
        "reward_basis": list(basis),
    }
    return made


OVERDUE = {**LINE, "new_bill_id": "B9", "contract_ended": False}
TELECOM_TASKS = [
    telecom_task(
        "abroad",
        [
            ("user", "set_user_location", {"abroad": True}),
            ("user", "turn_roaming_off", {}),
            ("user", "turn_data_saver_mode_on", {}),
        ],
        [
            ("assistant", "enable_roaming", LINE),
            ("user", "toggle_roaming", {}),
            ("user", "toggle_data_saver_mode", {}),
        ],
        [
            ("user", "assert_mobile_data_status", {"expected_status": True}),
            ("user", "assert_internet_speed", {"expected_speed": 200, "expected_desc": "excellent"}),
        ],
    ),
    telecom_task(
        "overdue",
        [("assistant", "suspend_line_for_overdue_bill", OVERDUE), ("user", "simulate_network_search", {})],
        [
            ("assistant", "send_payment_request", {"customer_id": "C1", "bill_id": "B9"}),
            ("user", "make_payment", {}),
            ("assistant", "resume_line", LINE),
            ("user", "reboot_device", {}),
        ],
        [
            ("assistant", "assert_no_overdue_bill", {"overdue_bill_id": "B9"}),
            ("user", "assert_service_status", {"expected_status": "connected"}),
        ],
    ),
    telecom_task(
        "used-up",
        [("assistant", "set_data_usage", {**LINE, "data_used_gb": 5.1})],
        [("assistant", "refuel_data", {**LINE, "gb_amount": 2.0})],
        [
            ("assistant", "assert_data_refueling_amount", {**LINE, "expected_amount": 2.0}),
            ("user", "assert_mobile_data_status", {"expected_status": True}),
        ],
    ),
    telecom_task(
        "locked",
        [("user", "lock_sim_card", {"mode": "pin"})],
        [("assistant", "transfer_to_human_agents", {"summary": "locked"})],
        [("user", "assert_service_status", {"expected_status": "no_service"})],
        ["ENV_ASSERTION", "ACTION"],
    ),
    telecom_task(
        "pictures",
        [
            ("user", "break_apn_mms_setting", {}),
            ("user", "remove_app_permission", {"app_name": "messaging", "permission": "storage"}),
            ("user", "set_wifi_calling", {"enabled": True, "mms_over_wifi": True}),
        ],
        [
            ("user", "reset_apn_settings", {}),
            ("user", "reboot_device", {}),
            ("user", "grant_app_permission", {"app_name": "messaging", "permission": "storage"}),
            ("user", "toggle_wifi_calling", {}),
        ],
        [("user", "assert_can_send_mms", {"expected_status": True})],
    ),
]


def write_telecom(folder: Path) -> Path:
    """Write a telecom domain."""
    (folder / "db.toml").write_text(TELECOM_DB)
    (folder / "user_db.toml").write_text(USER_DB)
    (folder / "tasks.json").write_text(json.dumps(TELECOM_TASKS))
    (folder / "main_policy.md").write_text("# Telecom policy\nBe kind.\n")
    (folder / "tech_support_manual.md").write_text("# Manual\nAsk for a restart.\n")
    (folder / "tech_support_workflow.md").write_text("# Steps\nFirst, a restart.\n")
    names = [one["id"] for one in TELECOM_TASKS]
    (folder / "split_tasks.json").write_text(json.dumps({"train": names[:2], "test": names[2:], "base": names}))
    return folder
