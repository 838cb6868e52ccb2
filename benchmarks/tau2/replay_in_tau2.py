"""Runs in tau2's own environment: replays calls by tau2's airline or telecom tools and prints the changes.

    python replay_in_tau2.py CHECKOUT/src airline|telecom FOLDER < episodes.json > left.json

``episodes.json`` is a list of episodes: ``setup`` and ``checks`` (as ``initialization_actions`` and
``env_assertions``), and ``calls``, each ``[requestor, name, arguments]``. The output has, for each episode, the refused
calls, the changes of the database, the user's database, and the checks that hold. It needs pydantic, loguru, addict,
deepdiff, docstring-parser, python-dotenv, PyYAML and toml of all that tau2 requires.
"""

from __future__ import annotations

import copy
import json
import sys
import types
from pathlib import Path
from typing import Any


def main() -> None:
    source, domain, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    package: Any = types.ModuleType("tau2")  # tau2/__init__.py would import everything
    package.__path__ = [str(source / "tau2")]
    sys.modules["tau2"] = package
    replay = {"airline": airline, "telecom": telecom}[domain]
    json.dump(replay(folder, json.load(sys.stdin)), sys.stdout, default=str)


def airline(folder: Path, episodes: list[Any]) -> list[dict[str, Any]]:
    from loguru import logger
    from tau2.domains.airline.data_model import FlightDB
    from tau2.domains.airline.tools import AirlineTools

    logger.remove()
    whole = FlightDB.model_validate(json.loads((folder / "db.json").read_text()))
    before = whole.model_dump(exclude_none=True)
    answers = []
    for episode in episodes:
        tools = AirlineTools(whole.model_copy(deep=True))

        def run(requestor: str, name: str, arguments: dict[str, Any], tools: Any = tools) -> None:
            getattr(tools, name)(**arguments)

        refused = replayed(run, episode["calls"])
        after = tools.db.model_dump(exclude_none=True)
        changed = {
            table: {key: record for key, record in rows.items() if record != before[table].get(key)}
            for table, rows in after.items()
        }
        answers.append({"refused": refused, "changed": {table: found for table, found in changed.items() if found}})
    return answers


def telecom(folder: Path, episodes: list[Any]) -> list[dict[str, Any]]:
    from loguru import logger
    from tau2.data_model.tasks import EnvAssertion, EnvFunctionCall
    from tau2.domains.telecom.data_model import TelecomDB
    from tau2.domains.telecom.environment import TelecomEnvironment
    from tau2.domains.telecom.tools import TelecomTools
    from tau2.domains.telecom.user_data_model import TelecomUserDB
    from tau2.domains.telecom.user_tools import TelecomUserTools

    logger.remove()
    vpn = TelecomUserTools.default_vpn_details.model_copy(deep=True)
    answers = []
    for episode in episodes:
        # tau2 shares these details between episodes, so that a VPN that was broken once stays so
        TelecomUserTools.default_vpn_details = vpn.model_copy(deep=True)
        tools, user = TelecomTools(TelecomDB.load(folder / "db.toml")), TelecomUserDB.load(folder / "user_db.toml")
        world = TelecomEnvironment("telecom", "", tools, TelecomUserTools(user))
        for call in episode["setup"]:
            world.run_env_function_call(EnvFunctionCall.model_validate(call))
        TelecomUserTools.default_vpn_details = vpn.model_copy(deep=True)

        def run(requestor: str, name: str, arguments: dict[str, Any], world: Any = world) -> None:
            world.make_tool_call(tool_name=name, requestor=requestor, **copy.deepcopy(arguments))
            world.sync_tools()

        refused = replayed(run, episode["calls"])
        checks = [EnvAssertion.model_validate(one) for one in episode["checks"]]
        held = [world.run_env_assertion(one, raise_assertion_error=False) for one in checks]
        answers.append(
            {
                "refused": refused,
                "db": tools.db.model_dump(mode="json"),
                "user": user.model_dump(mode="json"),
                "held": held,
            }
        )
    return answers


def replayed(run: Any, calls: list[Any]) -> list[int]:
    """Return the places of the calls that were refused."""
    refused = []
    for place, call in enumerate(calls):
        try:
            run(*call)
        except Exception:
            refused.append(place)
    return refused


if __name__ == "__main__":
    main()
