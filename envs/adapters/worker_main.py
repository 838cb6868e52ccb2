"""The child's side of :mod:`agentgym.envs.adapters.worker_process`: answers requests until the input ends."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

Operations = Mapping[str, Callable[..., dict[str, Any]]]

_ORPHAN_CHECK_S = 1.0


def serve(begin: Callable[[], Operations]) -> None:
    """Answer each line of standard input, a request ``{"op": name, ...}``, with one line of standard output.

    ``begin`` starts the engine and gives what it can do, by name; what it or the engine prints is dropped.
    """
    end_with(int(sys.argv[1]))
    # What the engine prints must not get among the answers.
    answers = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    operations: Operations = {"ready": dict, **begin()}
    for line in sys.stdin:
        answers.write(json.dumps(_answer(operations, json.loads(line))) + "\n")
        answers.flush()


def end_with(parent: int) -> None:
    """End this process soon after its parent has ended, even in the middle of a step."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _answer(operations: Operations, request: dict[str, Any]) -> dict[str, Any]:
    """What one request gives; an error of the engine is an answer too."""
    try:
        return operations[request.pop("op")](**request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
