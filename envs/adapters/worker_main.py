"""The child's side of :mod:`agentgym.envs.adapters.worker_process`, which answers requests until its input ends."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

_ORPHAN_CHECK_S = 1.0


def serve(engine_class: Callable[[], object]) -> None:
    """Answer each line of standard input, a request ``{"op": name, ...}``, with one line of standard output.

    ``engine_class`` starts the engine; its public methods are the operations. Output that it or the engine prints is
    dropped.
    """
    end_with(int(sys.argv[1]))
    # Output of the engine must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    engine = engine_class()
    operations = {name: getattr(engine, name) for name in dir(engine) if not name.startswith("_")}
    for line in sys.stdin:
        answers.write(json.dumps(_answer({"ready": dict, **operations}, json.loads(line))) + "\n")
        answers.flush()


def end_with(parent: int) -> None:
    """End this process soon after its parent has ended, even in the middle of a step."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _answer(operations: Mapping[str, Callable[..., dict[str, Any]]], request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request. An error of the engine is also an answer."""
    try:
        return operations[request.pop("op")](**request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error) or 'no message'}"}
