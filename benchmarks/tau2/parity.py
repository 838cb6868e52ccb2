"""Compares our airline and telecom tools with tau2-bench's own: every task's gold actions, and random calls.

git clone https://github.com/sierra-research/tau2-bench
python -m venv tau2-env
tau2-env/bin/pip install pydantic loguru addict deepdiff docstring-parser python-dotenv PyYAML toml
python benchmarks/tau2/parity.py airline --checkout tau2-bench --python tau2-env/bin/python
python benchmarks/tau2/parity.py telecom --checkout tau2-bench --python tau2-env/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.envs.airline.tau2 import load_airline
from agentgym.envs.airline.tools import AirlineTools
from agentgym.envs.domains.database import Database
from agentgym.envs.domains.task import DomainTask, EnvCall, GoldAction
from agentgym.envs.domains.tau2 import Tau2Data
from agentgym.envs.telecom.phone import AROUND, MODES, PHONE
from agentgym.envs.telecom.phone_tools import PhoneTools
from agentgym.envs.telecom.tau2 import load_telecom
from agentgym.envs.telecom.tools import TelecomTools
from agentgym.errors import ToolError

CALLS_PER_EPISODE = 8


@dataclass(frozen=True, slots=True)
class Episode:
    """A task, and the calls that are replayed on both sides."""

    task: DomainTask
    calls: Sequence[GoldAction]


def main() -> None:
    options = _options()
    folder = options.data or options.checkout / "data/tau2/domains" / options.domain
    rng = random.Random(0)
    load, draw, ours = _DOMAINS[options.domain]
    data = load(folder)
    tasks = list(data.tasks.values())
    gold = [Episode(task, task.actions) for task in tasks]
    drawn = [Episode(task, draw(data, task, rng)) for task in rng.choices(tasks, k=options.random_episodes)]
    theirs = _in_tau2(options, folder, [*gold, *drawn])
    mine = [ours(data, episode) for episode in (*gold, *drawn)]
    equal = [_comparable(one) == _comparable(other) for one, other in zip(mine, theirs, strict=True)]
    num_gold = sum(len(one.calls) for one in gold)
    num_calls, num_wrong = sum(len(one.calls) for one in drawn), sum(len(one["refused"]) for one in mine[len(gold) :])
    print(f"gold actions: {sum(equal[: len(gold)])} of {len(gold)} tasks equal, {num_gold} calls")
    print(f"random calls: {sum(equal[len(gold) :])} of {len(drawn)} equal, {num_calls} calls, {num_wrong} refused")
    for place in [place for place, is_equal in enumerate(equal) if not is_equal][:3]:
        calls = [[one.name, dict(one.arguments)] for one in [*gold, *drawn][place].calls]
        print(json.dumps({"place": place, "calls": calls, **_difference(mine[place], theirs[place])})[:3000])


def _airline(data: Tau2Data, episode: Episode) -> dict[str, Any]:
    tools = AirlineTools(Database(data.tables))
    refused = _refused(tools.call, episode.calls)
    return {"refused": refused, "changed": tools.db.changes()}


def _telecom(data: Tau2Data, episode: Episode) -> dict[str, Any]:
    tools = TelecomTools(Database(data.tables))
    for call in episode.task.setup:
        tools.set_up(call)

    def run(action: GoldAction) -> None:
        (tools.phone if action.requestor == "user" else tools).call(action)
        tools.sync()

    refused = _refused(run, episode.calls)
    tables = ("plans", "customers", "lines", "bills", "devices")
    return {
        "refused": refused,
        "db": {table: [record for _, record in tools.db.rows(table)] for table in tables},
        "user": {"device": tools.db.find(PHONE, PHONE), "surroundings": tools.db.find(AROUND, AROUND)},
        "held": [tools.holds(call) for call in episode.task.checks],
    }


def _refused(run: Callable[[GoldAction], object], calls: Sequence[GoldAction]) -> list[int]:
    refused = []
    for place, action in enumerate(calls):
        try:
            run(action)
        except ToolError:
            refused.append(place)
    return refused


def _comparable(left: dict[str, Any]) -> Any:
    """Return the data that must be equal on both sides, without nulls and the ids that tau2 draws for draft bills."""
    plain = json.loads(json.dumps(left))
    for number, bill in enumerate(plain.get("db", {}).get("bills", [])):
        if bill["status"] == "Draft":
            for customer in plain["db"]["customers"]:
                customer["bill_ids"] = [
                    f"draft-{number}" if one == bill["bill_id"] else one for one in customer["bill_ids"]
                ]
            bill["bill_id"] = f"draft-{number}"
    return _without_nulls(plain)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(held) for key, held in value.items() if held is not None}
    return [_without_nulls(held) for held in value] if isinstance(value, list) else value


def _difference(ours: Any, theirs: Any) -> dict[str, Any]:
    one, other = _comparable(ours), _comparable(theirs)
    return {key: {"ours": one[key], "theirs": other[key]} for key in one if one[key] != other[key]}


def _in_tau2(options: argparse.Namespace, folder: Path, episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    sent = [
        {
            "setup": [_as_tau2(call) for call in one.task.setup],
            "checks": [{**_as_tau2(call), "assert_value": call.wanted} for call in one.task.checks],
            "calls": [[action.requestor, action.name, dict(action.arguments)] for action in one.calls],
        }
        for one in episodes
    ]
    script = Path(__file__).with_name("replay_in_tau2.py")
    done = subprocess.run(
        [options.python, str(script), str(options.checkout / "src"), options.domain, str(folder)],
        input=json.dumps(sent),
        env={**os.environ, "TAU2_DATA_DIR": str(options.checkout / "data"), "PYTHONPATH": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _as_tau2(call: EnvCall) -> dict[str, Any]:
    return {"env_type": call.side, "func_name": call.name, "arguments": dict(call.arguments)}


# ------------------------------------------------------------------------------------------------------ random calls


def _airline_calls(data: Tau2Data, task: DomainTask, rng: random.Random) -> list[GoldAction]:
    """Draw calls that change one user's reservations, most of them almost valid."""
    user_id = rng.choice([key for key, user in data.tables["users"].items() if user["reservations"]])
    return [_airline_call(data, user_id, rng) for _ in range(CALLS_PER_EPISODE)]


def _airline_call(data: Tau2Data, user_id: str, rng: random.Random) -> GoldAction:
    user = data.tables["users"][user_id]
    reservation_id = rng.choice(user["reservations"])
    reservation = data.tables["reservations"][reservation_id]
    name = {"reservation_id": reservation_id if rng.random() < 0.95 else "ABCDEF"}
    method = rng.choice([*user["payment_methods"], "credit_card_0"])
    cabin = rng.choice(["economy", "business", "basic_economy"])
    flights = [_flight(data, one, rng) for one in reservation["flights"]]
    passengers = reservation["passengers"][: rng.randint(1, len(reservation["passengers"]))]
    bags = {"total_baggages": rng.randint(0, 4), "nonfree_baggages": rng.randint(0, 2)}
    insurance = rng.choice(["yes", "no"])
    price = _price(data, flights, cabin, len(passengers), bags["nonfree_baggages"], insurance)
    book = {
        "user_id": user_id,
        "origin": reservation["origin"],
        "destination": reservation["destination"],
        "flight_type": reservation["flight_type"],
        "cabin": cabin,
        "flights": flights,
        "passengers": passengers,
        "payment_methods": [{"payment_id": method, "amount": price + rng.choice([0, 0, 0, 1])}],
        **bags,
        "insurance": insurance,
    }
    choices = [
        GoldAction("book_reservation", book),
        GoldAction("update_reservation_flights", {**name, "cabin": cabin, "flights": flights, "payment_id": method}),
        GoldAction("update_reservation_baggages", {**name, **bags, "payment_id": method}),
        GoldAction("update_reservation_passengers", {**name, "passengers": passengers}),
        GoldAction("cancel_reservation", name),
        GoldAction("send_certificate", {"user_id": user_id, "amount": rng.randint(1, 3) * 50}),
    ]
    return rng.choices(choices, weights=[4, 4, 2, 2, 1, 1])[0]


def _flight(data: Tau2Data, old: Any, rng: random.Random) -> dict[str, str]:
    """A flight of a reservation, or another one of its airports on a day when it may be available."""
    if rng.random() < 0.4:
        return {"flight_number": old["flight_number"], "date": old["date"]}
    same = [
        number
        for number, one in data.tables["flights"].items()
        if (one["origin"], one["destination"]) == (old["origin"], old["destination"])
    ]
    number = rng.choice(same)
    days = sorted(data.tables["flights"][number]["dates"])
    return {"flight_number": number, "date": rng.choice([*days, "2024-06-30"])}


def _price(data: Tau2Data, flights: Any, cabin: str, num_passengers: int, num_bags: int, insurance: str) -> int:
    prices = 0
    for one in flights:
        on_day = data.tables["flights"][one["flight_number"]]["dates"].get(one["date"], {})
        prices += on_day.get("prices", {}).get(cabin, 0)
    return num_passengers * (prices + 30 * (insurance == "yes")) + 50 * num_bags


def _telecom_calls(data: Tau2Data, task: DomainTask, rng: random.Random) -> list[GoldAction]:
    return [_telecom_call(data, rng) for _ in range(2 * CALLS_PER_EPISODE)]


def _telecom_call(data: Tau2Data, rng: random.Random) -> GoldAction:
    if rng.random() < 0.7:
        name = rng.choice(list(PhoneTools.tools))
        arguments: dict[str, Any] = {
            "set_network_mode_preference": {"mode": rng.choice([*MODES, "6g"])},
            "grant_app_permission": {
                "app_name": rng.choice(["messaging", "browser", "camera"]),
                "permission": rng.choice(["sms", "storage", "phone", "network", "camera", "SMS"]),
            },
            "set_apn_settings": {"apn_settings": rng.choice([{"apn_name": "internet"}, {"mmsc_url": None}, {"x": 1}])},
            "check_app_status": {"app_name": "messaging"},
            "check_app_permissions": {"app_name": "messaging"},
        }.get(name, {})
        return GoldAction(name, arguments, "user")
    customer = rng.choice([one for one in data.tables["customers"].values() if one["line_ids"]])
    line = {"customer_id": customer["customer_id"], "line_id": rng.choice([*customer["line_ids"], "L1001"])}
    bill = {"customer_id": customer["customer_id"], "bill_id": rng.choice([*customer["bill_ids"], "B0"])}
    return rng.choice(
        [
            GoldAction("suspend_line", {**line, "reason": "asked for"}),
            GoldAction("resume_line", line),
            GoldAction("enable_roaming", line),
            GoldAction("disable_roaming", line),
            GoldAction("refuel_data", {**line, "gb_amount": rng.choice([0.0, 1.0, 2.5])}),
            GoldAction("send_payment_request", bill),
            GoldAction("get_data_usage", line),
            GoldAction("get_bills_for_customer", {"customer_id": customer["customer_id"]}),
        ]
    )


_DOMAINS: dict[str, tuple[Any, Any, Any]] = {
    "airline": (load_airline, _airline_calls, _airline),
    "telecom": (load_telecom, _telecom_calls, _telecom),
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domain", choices=["airline", "telecom"])
    parser.add_argument("--checkout", type=Path, required=True, help="a checkout of sierra-research/tau2-bench")
    parser.add_argument("--data", type=Path, help="folder of the domain's files, if not the checkout's")
    parser.add_argument(
        "--python", default="python", help="Python of an environment with the packages of tau2's domains"
    )
    parser.add_argument("--random-episodes", type=int, default=300)
    return parser.parse_args()


if __name__ == "__main__":
    main()
