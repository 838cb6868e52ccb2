"""Jobs of a process that has loaded AppWorld: to serve an episode, or to run a task's tests.

AppWorld's Python runs this file by :mod:`agentgym.processes.forks`.
"""

from __future__ import annotations

import importlib
import json
import socket
from pathlib import Path
from typing import Any


def load() -> None:
    """Import what the server and the tests import, the apps included, which they would import later."""
    for name in ("uvicorn", "appworld.serve.environment", "appworld.evaluator"):
        importlib.import_module(name)
    utils: Any = importlib.import_module("appworld.common.utils")
    for name in importlib.import_module("appworld.apps").get_all_apps():
        utils.import_apis_module(name)
        utils.import_models_module(name)


def serve(listening: socket.socket) -> None:
    """Run AppWorld's server; `appworld serve environment` listens on all addresses of the machine."""
    uvicorn: Any = importlib.import_module("uvicorn")
    app = importlib.import_module("appworld.serve.environment").app
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


def judge(name: str, experiment: str, path: str) -> None:
    """Run the tests of one task, as `appworld evaluate` does, and write the result."""
    found = importlib.import_module("appworld.evaluator").evaluate_task(name, experiment_name=experiment)
    Path(path).write_text(json.dumps(found.to_dict()), encoding="utf-8")
