"""Compare answers: by math-verify, or by MATH's own rule."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

from agentgym.envs.adapters.worker_process import SharedWorker
from agentgym.envs.mathematics.equivalence import is_equivalent
from agentgym.errors import EnvError, require_extra, require_known

Rule = Literal["math_verify", "math"]
RULES: Final = ("math_verify", "math")
"""math-verify reads LaTeX and compares values; MATH's own rule compares normalised texts."""

MAX_ANSWER_CHARS: Final = 2_000
_CPU_S: Final = 10
_WALL_S: Final = 300.0


def checked_rule(rule: Rule, what: str) -> Rule:
    """Return a rule's name.

    Raises:
        UnknownNameError: there is no such rule.
        MissingExtraError: math-verify is not installed.
    """
    require_known("rule for equal answers", rule, RULES)
    if rule == "math_verify":
        require_extra(what, "math", "math_verify")
    return rule


def is_right(given: str, wanted: str, rule: Rule) -> bool:
    """Return True if an answer is right.

    An answer that takes math-verify more than ten seconds of processor time or 2 GB is wrong, as is one of more than
    :data:`MAX_ANSWER_CHARS` characters.

    Raises:
        EnvError: math-verify's process failed, or cannot compare the wanted answer with itself.
        EnvTimeoutError: the process did not answer within five minutes, as on an overloaded machine.
    """
    if rule == "math":
        return is_equivalent(given, wanted)
    if not given or len(given) > MAX_ANSWER_CHARS:
        return False
    found = _MATH_VERIFY.call(_WALL_S, op="verify", wanted=wanted, given=given, cpu_s=_CPU_S)
    if found.get("is_equal"):
        return True
    _check_itself(wanted)
    return False


@lru_cache(maxsize=4096)
def _check_itself(wanted: str) -> None:
    """Raise ``EnvError`` for an answer that equals nothing, itself included: no given answer is to blame for that."""
    itself = _MATH_VERIFY.call(_WALL_S, op="verify", wanted=wanted, given=wanted, cpu_s=_CPU_S)
    if not itself.get("is_equal"):
        why = itself.get("failed", "it is not equal")
        raise EnvError(
            f"math-verify cannot compare the answer {wanted[:200]!r} with itself: {why}; correct the problem's answer"
        )


_MATH_VERIFY = SharedWorker("agentgym.envs.mathematics.math_verify_worker", load_timeout_s=120.0)
"""One worker for all environments of this process: its answers depend only on the request."""
