"""Jobs of a process that has loaded AppWorld: to serve an episode, or to run a task's tests.

AppWorld's Python runs this file by :mod:`agentgym.processes.forks`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import socket
import sys
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


def serve(listening: socket.socket, guard: str) -> None:
    """Run AppWorld's server, which executes code, behind the guard.

    `appworld serve environment` would listen on all addresses of the machine, and answer pages of any site.

    Args:
        listening: a bound socket of the loopback interface.
        guard: path of the module with the guard, since AppWorld's Python may not have agentgym.
    """
    uvicorn: Any = importlib.import_module("uvicorn")
    app = importlib.import_module("appworld.serve.environment").app
    spec = importlib.util.spec_from_file_location("agentgym_web_guard", guard)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["agentgym_web_guard"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    guarded = module.WebGuard(app, module.Access())
    uvicorn.Server(uvicorn.Config(guarded, log_level="warning")).run(sockets=[listening])


def judge(name: str, experiment: str, path: str) -> None:
    """Run the tests of one task, as `appworld evaluate` does, and write the result."""
    found = importlib.import_module("appworld.evaluator").evaluate_task(name, experiment_name=experiment)
    Path(path).write_text(json.dumps(found.to_dict()), encoding="utf-8")
