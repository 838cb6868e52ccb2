"""A folder in the layout of tau2's retail domain, with a shop and tasks of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testkit.retail_tables import HOME, TABLES


def task(name: str, *actions: tuple[str, dict[str, Any]], **criteria: Any) -> dict[str, Any]:
    return {
        "id": name,
        "description": {"purpose": None},
        "user_scenario": {
            "persona": None,
            "instructions": {
                "domain": "retail",
                "reason_for_call": "You want to change your orders.",
                "known_info": "You are Mia Li in zip code 80211.",
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
            "communicate_info": [],
            "nl_assertions": None,
            "reward_basis": ["DB", "NL_ASSERTION"],
            **criteria,
        },
    }


FIND = ("find_user_id_by_email", {"email": "mia@example.com"})
WRONG = ("find_user_id_by_email", {"email": "typo@example.com"})
CANCEL = ("cancel_pending_order", {"order_id": "#1", "reason": "no longer needed"})
TASKS = [
    task("0", WRONG, FIND, ("get_order_details", {"order_id": "#1"}), CANCEL),
    task("1", FIND, ("modify_user_address", {"user_id": "mia", **{**HOME, "zip": "1"}}), communicate_info=["1,041.37"]),
    task("2", FIND, ("transfer_to_human_agents", {"summary": "x"})),
]
TASKS[1]["evaluation_criteria"]["communicate_info"] = ["1041.37"]


def write_retail(folder: Path) -> Path:
    """Write tables, tasks, rules and splits."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "db.json").write_text(json.dumps(TABLES))
    (folder / "tasks.json").write_text(json.dumps(TASKS))
    (folder / "policy.md").write_text("# Policy\nBe kind.\n")
    (folder / "split_tasks.json").write_text(json.dumps({"train": ["0"], "test": ["1", "2"], "base": ["0", "1", "2"]}))
    return folder
