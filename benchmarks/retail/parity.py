"""Compares our retail tools with tau2-bench's own: every task's gold actions, and random calls.

git clone https://github.com/sierra-research/tau2-bench
python -m venv tau2-env
tau2-env/bin/pip install pydantic loguru addict deepdiff docstring-parser python-dotenv PyYAML toml
python benchmarks/retail/parity.py --checkout tau2-bench --python tau2-env/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.envs.domains.database import Database
from agentgym.envs.domains.task import GoldAction
from agentgym.envs.retail.tau2 import Tau2Data, Tau2RetailTools, load_tau2
from agentgym.envs.retail.tools import REASONS
from agentgym.errors import ToolError

CALLS_PER_EPISODE = 8


def main() -> None:
    options = _options()
    folder = options.data or options.checkout / "data/tau2/domains/retail"
    data = load_tau2(folder)
    gold = [list(task.actions) for task in data.tasks.values()]
    rng = random.Random(0)
    drawn = [random_calls(data, rng) for _ in range(options.random_episodes)]
    theirs = in_tau2(options, folder, [*gold, *drawn])
    ours = [replayed(data, calls) for calls in (*gold, *drawn)]
    equal = [one == other for one, other in zip(ours, theirs, strict=True)]
    num_calls = sum(map(len, drawn))
    num_wrong = sum(len(one["refused"]) for one in ours[len(gold) :])
    print(f"gold actions: {sum(equal[: len(gold)])} of {len(gold)} tasks equal, {sum(map(len, gold))} calls")
    print(
        f"random calls: {sum(equal[len(gold) :])} of {len(drawn)} episodes equal, {num_calls} calls, {num_wrong} wrong"
    )
    for place in [place for place, is_equal in enumerate(equal) if not is_equal][:5]:
        print(json.dumps({"place": place, "ours": ours[place], "theirs": theirs[place]}))


def replayed(data: Tau2Data, calls: Sequence[GoldAction]) -> dict[str, Any]:
    """Return the calls that our tools refuse, and the records that the others change."""
    tools = Tau2RetailTools(Database(data.tables))
    refused = []
    for place, action in enumerate(calls):
        try:
            tools.call(action)
        except ToolError:
            refused.append(place)
    return {"refused": refused, "changed": tools.db.changes()}


def in_tau2(
    options: argparse.Namespace, folder: Path, episodes: Sequence[Sequence[GoldAction]]
) -> list[dict[str, Any]]:
    """Replay the same calls by tau2's tools."""
    calls = [[[action.name, dict(action.arguments)] for action in episode] for episode in episodes]
    script = Path(__file__).with_name("replay_in_tau2.py")
    done = subprocess.run(
        [options.python, str(script), str(options.checkout / "src"), str(folder)],
        input=json.dumps(calls),
        env={**os.environ, "TAU2_DATA_DIR": str(options.checkout / "data"), "PYTHONPATH": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def random_calls(data: Tau2Data, rng: random.Random) -> list[GoldAction]:
    """Draw calls that change one user's orders, most of them almost valid."""
    user_id = rng.choice([key for key, user in data.tables["users"].items() if user["orders"]])
    user = data.tables["users"][user_id]
    return [_random_call(data, user, rng) for _ in range(CALLS_PER_EPISODE)]


def _random_call(data: Tau2Data, user: Any, rng: random.Random) -> GoldAction:
    order = data.tables["orders"][rng.choice(user["orders"])]
    items = rng.sample(order["items"], rng.randint(1, len(order["items"])))
    variants = [list(data.tables["products"][item["product_id"]]["variants"]) for item in items]
    old, new = [item["item_id"] for item in items], [rng.choice(one) for one in variants]
    method = rng.choice([*user["payment_methods"], order["payment_history"][0]["payment_method_id"]])
    address = {**order["address"], "address1": f"{rng.randint(1, 999)} Elm Street"}
    order_id = {"order_id": order["order_id"] if rng.random() < 0.95 else "#W0"}
    swap = {**order_id, "item_ids": old, "new_item_ids": new, "payment_method_id": method}
    return rng.choice(
        [
            GoldAction("cancel_pending_order", {**order_id, "reason": rng.choice([*REASONS, "bored"])}),
            GoldAction("modify_pending_order_address", {**order_id, **address}),
            GoldAction("modify_pending_order_items", swap),
            GoldAction("modify_pending_order_payment", {**order_id, "payment_method_id": method}),
            GoldAction("modify_user_address", {"user_id": user["user_id"], **address}),
            GoldAction("return_delivered_order_items", {**order_id, "item_ids": old, "payment_method_id": method}),
            GoldAction("exchange_delivered_order_items", swap),
        ]
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="a checkout of sierra-research/tau2-bench")
    parser.add_argument("--data", type=Path, help="folder with db.json and tasks.json, if not the checkout's")
    parser.add_argument(
        "--python", default="python", help="Python of an environment with the packages of tau2's retail domain"
    )
    parser.add_argument("--random-episodes", type=int, default=300)
    return parser.parse_args()


if __name__ == "__main__":
    main()
