"""The process that runs math-verify; see :mod:`agentgym.envs.mathematics.grading`.

Request: ``verify`` (the wanted answer, the given one, seconds of processor time). Each comparison runs in a child of
its own, since sympy neither ends nor lets itself be interrupted on some expressions.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
from typing import Any

from agentgym.envs.adapters.worker_main import serve

_MEMORY_BYTES = 2 << 30


class MathVerify:
    """The worker's object around math-verify, which imports sympy."""

    def __init__(self) -> None:
        library: Any = importlib.import_module("math_verify")
        parser: Any = importlib.import_module("math_verify.parser")
        self._parse, self._verify = library.parse, library.verify
        self._formats = [parser.LatexExtractionConfig(boxed_match_priority=0)]

    def verify(self, wanted: str, given: str, cpu_s: int) -> dict[str, Any]:
        """Return ``is_equal``, or ``failed`` if the comparison exceeded its time or memory, or raised."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._answer(writing, wanted, given, cpu_s)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        answer: dict[str, Any] = (
            json.loads(said) if said else {"failed": f"more than {cpu_s} s or {_MEMORY_BYTES} bytes"}
        )
        return answer

    def _answer(self, writing: int, wanted: str, given: str, cpu_s: int) -> None:
        """Compare in the child and end it."""
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
            is_equal = bool(self._verify(self._read(wanted), self._read(given), timeout_seconds=None))
            answer: dict[str, Any] = {"is_equal": is_equal}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)

    def _read(self, answer: str) -> Any:
        return self._parse(f"\\boxed{{{answer}}}", extraction_config=self._formats, parsing_timeout=None)


if __name__ == "__main__":
    serve(MathVerify)
