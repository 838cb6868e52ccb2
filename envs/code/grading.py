"""Grading where the graded code can neither see what is expected of it nor say what came out.

A fresh sandbox gets the work alone, cut down to the files that the agent may change. In it a judge (trusted code, which
came from outside a moment ago) starts a second process that loads the work, and asks it over a socket for one call
after the other. Tests and expected values never are in the second process, nor in any file:

* for :func:`grade_calls` they never enter the sandbox: values come out and are compared here;
* for :func:`grade_check` and :func:`grade_suite` the judge has them in its memory, which is closed to other processes
  of its user, and gets them only after the second process has been split off. Its verdict leaves by its own standard
  output, which the second process never had.

So nothing that the work does to its own process changes a verdict: it can leave early, replace ``unittest``, write to
every descriptor it has, look into all frames and files, or print what it likes. What it can do is answer wrongly, or
make the grading fail, which is a failed submission.

How long it may take is a limit of processor time (``Limits.cpu_s`` of the sandbox, for each process): the same work
gets the same grade on an idle machine and on a starved one. The limit by the clock is far above it.

What remains possible: an object of a class that the tests themselves use (``Clock(8, 0) == Clock(8, 0)``) answers for
itself what ``==``, ``<``, ``in``, ``bool`` or ``len`` of it gives. And whatever the sandbox lets through: on the rung
``process`` the code may read the host's files, on which tests may lie.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from agentgym.envs.code.inside import wire
from agentgym.envs.code.shared_pool import SharedPool
from agentgym.envs.code.workspace import Files, Grade, packed
from agentgym.errors import EnvError
from agentgym.tools.python import program_of

_INSIDE = "agentgym.envs.code.inside"
_MODULES = ("wire", "candidate", "proxies", "judge")


def grade_calls(
    pool: SharedPool,
    work: Files,
    function: str,
    cases: Sequence[tuple[Sequence[object], object]],
) -> Grade:
    """Grade a function by its values.

    Args:
        pool: where the sandbox to grade in comes from.
        work: the files of the work.
        function: ``module:name``.
        cases: arguments and expected value of each call; plain values (numbers, text, lists, tuples, sets, dicts),
            which must be equal in type, too: ``1`` is not ``True`` and not ``1.0``. As in Python, the order of a dict
            and the sign of a zero make no difference.

    Raises:
        SandboxError: the sandbox failed, not the work.
    """
    module, _, name = function.partition(":")
    request = {"kind": "calls", "module": module, "function": name}
    request["calls"] = [[wire.encode(arg, _unknown) for arg in args] for args, _ in cases]  # type: ignore[assignment]
    report = _judged(pool, work, request)
    expected = [canonical_text(wire.encode(value, _unknown)) for _, value in cases]
    values = {row["test"]: canonical_text(row["value"]) for row in report if "value" in row}
    num_passed = sum(values.get(number) == text for number, text in enumerate(expected))
    return _grade(report, len(cases), num_passed)


def grade_check(pool: SharedPool, work: Files, function: str, source: str) -> Grade:
    """Grade a function by trusted code that defines ``check(candidate)``, which raises if the candidate is wrong.

    Raises:
        SandboxError: the sandbox failed, not the work.
        EnvError: the source itself does not run.
    """
    module, _, name = function.partition(":")
    request = {"kind": "check", "module": module, "function": name, "source": source}
    report = _judged(pool, work, request)
    return _grade(report, 1, sum(row.get("passed") is True for row in report))


def grade_suite(pool: SharedPool, work: Files, tests: Mapping[str, str]) -> Grade:
    """Grade modules by trusted test modules.

    What tests import of the work are proxies: values go by copy, objects by reference, functions that are handed over
    are called back, errors arrive as errors of the same class. Not to be had are classes derived from the work's, its
    ``__dict__``, and changes that it makes to a list it was given.

    Args:
        pool: where the sandbox to grade in comes from.
        work: the files of the work; modules are found in its top folder and in ``src``. One with a name of the standard
            library is invisible to the tests, which get the library's.
        tests: source by module name (``test_clock`` or ``tests.test_clock``): ``unittest`` classes and plain functions
            ``test_...`` with ``assert``.

    Raises:
        SandboxError: the sandbox failed, not the work.
        EnvError: the tests themselves are no Python.
    """
    names = sorted(modules_of(work))
    report = _judged(pool, work, {"kind": "suite", "tests": dict(tests), "names": names})
    num_skipped = len({row["test"] for row in report if row.get("skipped")})
    failed = {row["test"] for row in report if row.get("passed") is False}
    passed = {row["test"] for row in report if row.get("passed") is True} - failed
    num_tests = max((row["num_tests"] for row in report if "num_tests" in row), default=0)
    return _grade(report, num_tests - num_skipped, len(passed))


def modules_of(work: Files) -> set[str]:
    """Names of the top modules and packages that files make up.

    Example:
        >>> sorted(modules_of({"clock.py": "", "src/shop/cart.py": "", "notes.txt": ""}))
        ['clock', 'shop']
    """
    names = set()
    for path in work:
        parts = PurePosixPath(path).parts
        parts = parts[1:] if len(parts) > 1 and parts[0] == "src" else parts
        if path.endswith(".py"):
            names.add(parts[0].removesuffix(".py"))
    return names


def _judged(pool: SharedPool, work: Files, request: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the judge's verdicts, row by row."""
    modules = ("wire", "candidate", "proxies", "suite", "judge") if request["kind"] == "suite" else _MODULES
    program = program_of(_INSIDE, *modules) + "module.main()"
    with pool.acquire() as sandbox:
        sandbox.restore(packed(work))
        result = sandbox.run_python(program, stdin=json.dumps(request))
    report = []
    for line in result.stdout.splitlines():
        try:
            report.append(json.loads(line))
        except (ValueError, RecursionError):  # the last one, cut when the time was up; or nested without end
            break
    if not report:  # before it had begun, so this is not the work's doing
        raise EnvError(f"grading did not begin (exit code {result.exit_code}): {result.stderr.strip()[-500:]}")
    return report


def _grade(report: Sequence[Mapping[str, object]], num_tests: int, num_passed: int) -> Grade:
    is_collected = any(row.get("collected") is True for row in report)
    notes = [str(row["note"]) for row in report if row.get("collected") is False]
    errors = [str(row["error"]) for row in report if "error" in row]
    if not is_collected:
        return Grade(num_tests=num_tests, num_passed=0, is_collected=False, note=(notes or ["it did not answer"])[0])
    return Grade(num_tests=num_tests, num_passed=num_passed, note=errors[0] if errors else "")


def canonical_text(data: object) -> str:
    """Return a text of an encoded value that is the same for equal values of the same types.

    Example:
        >>> canonical_text({"d": [["b", -0.0], ["a", 1]]}) == canonical_text({"d": [["a", 1], ["b", 0.0]]})
        True
    """
    try:
        return json.dumps(_canonical(data), sort_keys=True)
    except RecursionError:  # nested without end: the text of no value
        return ""


def _canonical(data: object) -> object:
    """Return encoded data without what equality in Python does not see: signs of zeros, orders of dicts and sets."""
    if isinstance(data, float):
        return data + 0.0  # -0.0 + 0.0 is 0.0
    if isinstance(data, list):
        return [_canonical(item) for item in data]
    if not isinstance(data, dict):
        return data
    found = {kind: _canonical(content) for kind, content in data.items()}
    for kind in found.keys() & {"d", "s", "f"}:  # the encodings of dict, set and frozenset
        content = found[kind]
        if isinstance(content, list):
            found[kind] = sorted(content, key=lambda item: json.dumps(item, sort_keys=True))
    return found


def _unknown(value: object) -> dict[str, object]:
    raise TypeError(f"a {type(value).__name__} is no plain value")
