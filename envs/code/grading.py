"""Grading in which the graded code can neither see the expected values nor write the verdict.

A new sandbox gets only the work: the files that the agent may change. In it, a judge (trusted code that is sent from
outside) starts a second process that loads the work, and sends it one call after the other over a socket. Tests and
expected values are never in the second process or in a file:

* for :func:`grade_calls` they never enter the sandbox: results are returned and compared here;
* for :func:`grade_check` and :func:`grade_suite` the judge holds them in its memory, which other processes of its user
  cannot read, and receives them only after it has started the second process. It writes the verdict to its own standard
  output, which the second process never has.

Nothing that the work does in its own process therefore changes a verdict. It may exit early, replace ``unittest``,
write to all its descriptors, inspect all frames and files, or print any text. It can only answer wrongly or make the
grading fail, which counts as a failed submission.

Its duration is limited in CPU time (``Limits.cpu_s`` of the sandbox, per process), so that the same work gets the same
grade on an idle and on a busy machine. The limit of wall time is much higher.

Two attacks remain. An object of a class that the tests themselves use (``Clock(8, 0) == Clock(8, 0)``) decides its own
results of ``==``, ``<``, ``in``, ``bool`` and ``len``. And the sandbox may be weak: with ``process``, code can read the
host's files, which may include tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from agentgym.envs.code.inside import wire
from agentgym.envs.code.shared_pool import SharedPool
from agentgym.envs.code.suite_limits import require_runnable
from agentgym.envs.code.workspace import Files, Grade, packed
from agentgym.errors import EnvError, ToolError
from agentgym.tools.python import program_of

_INSIDE = "agentgym.envs.code.inside"
_MODULES = ("wire", "candidate", "proxies", "judge")


def grade_calls(
    pool: SharedPool,
    work: Files,
    function: str,
    cases: Sequence[tuple[Sequence[object], object]],
) -> Grade:
    """Grade a function by its return values.

    Args:
        pool: where the sandbox to grade in comes from.
        work: the files of the work.
        function: ``module:name``.
        cases: arguments and expected value of each call, as plain values (numbers, text, lists, tuples, sets, dicts).
            Types must be equal, too: ``1`` is neither ``True`` nor ``1.0``. As in Python, the order of a dict and the
            sign of a zero do not matter.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The result of one call of a function of the work: a value, or the reason why there is none."""

    value: object = None
    error: str = ""

    @property
    def is_value(self) -> bool:
        """True if the call returned a plain value."""
        return not self.error


def call_once(pool: SharedPool, work: Files, function: str, arguments: Sequence[object]) -> Returned:
    """Call a function of the work once, in a new sandbox and a new process.

    Args:
        function: ``module:name``.
        arguments: plain values.

    Raises:
        SandboxError: the sandbox failed, not the work.
    """
    module, _, name = function.partition(":")
    encoded = [wire.encode(argument, _unknown) for argument in arguments]
    request = {"kind": "calls", "module": module, "function": name, "calls": [encoded]}
    try:
        report = _judged(pool, work, request)
    except ToolError as error:  # work that ends its sandbox, or that no sandbox accepts
        return Returned(error=str(error))
    for row in report:
        if "value" in row:
            try:
                return Returned(value=wire.decode(row["value"], _unresolved))
            except (wire.WireError, RecursionError) as error:
                return Returned(error=str(error) or "the value is nested too deeply")
        if words := row.get("error") or (row.get("collected") is False and row.get("note")):
            return Returned(error=str(words))
    return Returned(error="it did not return within its limits")


def grade_check(pool: SharedPool, work: Files, function: str, source: str) -> Grade:
    """Grade a function with trusted code that defines ``check(candidate)``, which raises if the candidate is wrong.

    Raises:
        SandboxError: the sandbox failed, not the work.
        EnvError: the trusted code itself fails.
    """
    module, _, name = function.partition(":")
    request = {"kind": "check", "module": module, "function": name, "source": source}
    report = _judged(pool, work, request)
    return _grade(report, 1, sum(row.get("passed") is True for row in report))


def grade_suite(
    pool: SharedPool, work: Files, tests: Mapping[str, str], given_modules: Iterable[str] | None = None
) -> Grade:
    """Grade modules with trusted test modules.

    Tests import proxies of the work. Values are copied, objects are passed by reference, functions that the tests pass
    are called back, and errors keep their class. Not supported are classes derived from the work's, its ``__dict__``,
    and changes that it makes to a list it was given. Tests that capture printed text, await coroutines or patch a
    module inside of the work are refused.

    Args:
        pool: where the sandbox to grade in comes from.
        work: the files of the work; modules are found in its top folder and in ``src``. One with a name of the standard
            library is invisible to the tests, which get the library's.
        tests: source by module name (``test_clock`` or ``tests.test_clock``): ``unittest`` classes and plain functions
            ``test_...`` with ``assert``.
        given_modules: top-level modules that the work began with. If given, a test that fails to import any other
            module is broken, and not a failure of the work.

    Raises:
        SandboxError: the sandbox failed, not the work.
        EnvError: the tests themselves are not valid Python, or import a module that is neither there nor the work's.
        UsageError: the tests cannot be run, see above.
    """
    names = modules_of(work)
    require_runnable(tests, names)
    request = {"kind": "suite", "tests": dict(tests), "names": sorted(names)}
    if given_modules is not None:
        request["own"] = sorted(names | set(given_modules))
    report = _judged(pool, work, request)
    num_skipped = len({row["test"] for row in report if row.get("skipped")})
    failed = {row["test"] for row in report if row.get("passed") is False}
    passed = {row["test"] for row in report if row.get("passed") is True} - failed
    num_tests = max((row["num_tests"] for row in report if "num_tests" in row), default=0)
    return _grade(report, num_tests - num_skipped, len(passed))


def modules_of(work: Files) -> set[str]:
    """Return the names of the top-level modules and packages in files.

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
        except (ValueError, RecursionError):  # the last line, cut at the time limit; or nested too deeply
            break
    if not report:  # it failed before grading began, so the work is not the cause
        raise EnvError(f"grading did not begin (exit code {result.exit_code}): {result.stderr.strip()[-500:]}")
    if broken := [str(row["broken"]) for row in report if "broken" in row]:
        raise EnvError(f"the tests are broken: {broken[0]}")
    return report


def _grade(report: Sequence[Mapping[str, object]], num_tests: int, num_passed: int) -> Grade:
    is_collected = any(row.get("collected") is True for row in report)
    notes = [str(row["note"]) for row in report if row.get("collected") is False]
    errors = [str(row["error"]) for row in report if "error" in row]
    if not is_collected:
        return Grade(num_tests=num_tests, num_passed=0, is_collected=False, note=(notes or ["it did not answer"])[0])
    return Grade(num_tests=num_tests, num_passed=num_passed, note=errors[0] if errors else "")


def canonical_text(data: object) -> str:
    """Return a text of an encoded value that is equal for equal values of the same types.

    Example:
        >>> canonical_text({"d": [["b", -0.0], ["a", 1]]}) == canonical_text({"d": [["a", 1], ["b", 0.0]]})
        True
    """
    try:
        return json.dumps(_canonical(data), sort_keys=True)
    except RecursionError:  # nested too deeply: a text that no value has
        return ""


def _canonical(data: object) -> object:
    """Return encoded data without details that Python's equality ignores: signs of zeros, orders of dicts and sets."""
    if isinstance(data, float):
        return data + 0.0  # -0.0 + 0.0 is 0.0
    if isinstance(data, list):
        return [_canonical(item) for item in data]
    if not isinstance(data, dict):
        return data
    found = {kind: _canonical(content) for kind, content in data.items()}
    for kind in found.keys() & {"d", "s", "f"}:  # encodings of dict, set and frozenset
        content = found[kind]
        if isinstance(content, list):
            found[kind] = sorted(content, key=lambda item: json.dumps(item, sort_keys=True))
    return found


def _unresolved(reference: dict[str, object]) -> object:
    raise wire.WireError("an object is not a plain value")


def _unknown(value: object) -> dict[str, object]:
    raise TypeError(f"a {type(value).__name__} is no plain value")
