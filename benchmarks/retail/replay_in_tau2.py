"""Runs in tau2's own environment: replays lists of calls by tau2's retail tools and prints the changes.

    python replay_in_tau2.py CHECKOUT/src FOLDER < calls.json > changes.json

``calls.json`` is a list of episodes, each a list of ``[name, arguments]``. The output has, for each episode, the
refused calls and the records that differ from ``FOLDER/db.json``. Only the retail domain is imported, which needs
pydantic, loguru, addict, deepdiff, docstring-parser, python-dotenv, PyYAML and toml of all that tau2 requires.
"""

from __future__ import annotations

import copy
import json
import sys
import types
from pathlib import Path
from typing import Any


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    package: Any = types.ModuleType("tau2")  # tau2/__init__.py would import everything
    package.__path__ = [str(source / "tau2")]
    sys.modules["tau2"] = package
    from tau2.domains.retail.data_model import RetailDB
    from tau2.domains.retail.tools import RetailTools

    whole = RetailDB.model_validate(json.loads((folder / "db.json").read_text()))
    before = whole.model_dump(exclude_none=True)
    answers = []
    for calls in json.load(sys.stdin):
        tools = RetailTools(copy.deepcopy(whole))
        refused = []
        for place, (name, arguments) in enumerate(calls):
            try:
                getattr(tools, name)(**arguments)
            except Exception:
                refused.append(place)
        after = tools.db.model_dump(exclude_none=True)
        changed = {
            table: {key: record for key, record in after[table].items() if record != before[table][key]}
            for table in ("products", "users", "orders")
        }
        answers.append({"refused": refused, "changed": {table: found for table, found in changed.items() if found}})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
