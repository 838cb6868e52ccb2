"""A start of Ray's workers that forks them from a :mod:`testkit.warm_python`, in place of Ray's ``setup_worker.py``.

Ray's raylet runs this file for each worker. Such a worker has the trainer's imports already, which take seconds; else
it is one of Ray's. ``WARM_RAY_SOCKET`` names the socket of the server.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Replace this process by the client of a worker, which ends with it."""
    told = {"--serialized-runtime-env-context=": "{}", "--language=": ""}
    rest = []
    for argument in arguments:
        option = next((option for option in told if argument.startswith(option)), "")
        if option:
            told[option] = argument.removeprefix(option)
        else:
            rest.append(argument)
    context, language = told.values()
    assert language == "PYTHON", language
    os.environ.update(json.loads(context).get("env_vars", {}))
    client = [sys.executable, "-S", "-E", str(Path(__file__).with_name("warm_python.py"))]
    os.execv(sys.executable, [*client, "run", os.environ["WARM_RAY_SOCKET"], *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
