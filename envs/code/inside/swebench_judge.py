"""Grade the tests of a SWE-bench task: read their log and write the reward. It needs only Python 3.7.

    python3 judge.py LOG EXPECTED REWARD

``EXPECTED`` is JSON: ``parser``, ``fail_to_pass`` and ``pass_to_pass``. The rules are those of SWE-bench's harness
(``harness/grading.py`` and ``harness/log_parsers/python.py`` of SWE-bench/SWE-bench, MIT, release 5.0.2): every test of
FAIL_TO_PASS must pass, every one of PASS_TO_PASS must pass or be skipped; an expected failure passes. A name that is
truncated within its parameters means all tests that begin with it, if they have the same status.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

STATUSES = ("FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL")
_COUNT = re.compile(r"\[\d+\]$")
_OPTION = re.compile(r"(.*?)\[(.*)\]")
_COLOUR = re.compile(r"\[\d+m")
_CONTROL = {code: None for code in range(1, 32)}
_DJANGO_BREAKS = (
    r"^(.*?)\s\.\.\.\sTesting against Django installed in (?:[\s\S]*?) silenced\)\.\nok$",
    r"^(.*?)\s\.\.\.\sInternal Server Error: /(?:.*)/\nok$",
    r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$",
)


def read_pytest(log: str) -> dict[str, str]:
    """Return statuses by test from lines of ``pytest -rA`` that begin with a status."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        words = _words(line.replace(" - ", " ") if line.startswith("FAILED") else line)
        if words:
            found[words[1]] = words[0]
    return found


def read_pytest_options(log: str) -> dict[str, str]:
    """Return statuses as :func:`read_pytest` does, with paths in parameters cut to their last part."""
    found: dict[str, str] = {}
    for name, status in read_pytest(log).items():
        option = _OPTION.search(name)
        value = option[2] if option else ""
        is_path = value.startswith("/") and not value.startswith("//") and "*" not in value
        cut = f"/{value.split('/')[-1]}" if is_path else value
        found[f"{option[1]}[{cut}]" if option else name] = status
    return found


def read_pytest_v2(log: str) -> dict[str, str]:
    """Return statuses from lines that begin with a status, or end with one, as in older versions."""
    found: dict[str, str] = {}
    for raw in log.split("\n"):
        line = _COLOUR.sub("", raw).translate(_CONTROL)
        words = line.split(" - ", 1)[0].split() if line.startswith("FAILED") else line.split()
        if line.startswith(STATUSES):
            if len(words) > 1 and not (words[0] == "SKIPPED" and _COUNT.match(words[1])):
                found[" ".join(words[1:])] = words[0]
        elif line.endswith(STATUSES) and len(words) > 1:
            found[" ".join(words[:-1])] = words[-1]
    return found


def read_matplotlib(log: str) -> dict[str, str]:
    """Return pytest's statuses, with mouse buttons as numbers."""
    return read_pytest(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def read_seaborn(log: str) -> dict[str, str]:
    """Return statuses from lines with FAILED as first, or PASSED as first or second word."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith("FAILED"):
            found[words[1]] = "FAILED"
        elif " PASSED " in line and words[1] == "PASSED":
            found[words[0]] = "PASSED"
        elif line.startswith("PASSED"):
            found[words[1]] = "PASSED"
    return found


def read_sympy(log: str) -> dict[str, str]:
    """Return statuses from sympy's own runner."""
    found = {f"{file}.py:{test}": "FAILED" for file, test in re.findall(r"_* (.*)\.py:(.*) _*", log)}
    for line in (line.strip() for line in log.split("\n")):
        for ending, status in ((" E", "ERROR"), (" F", "FAILED"), (" ok", "PASSED")):
            if line.startswith("test_") and line.endswith(ending):
                found[line.split()[0]] = status
    return found


def read_django(log: str) -> dict[str, str]:
    """Return statuses from Django's own runner, whose lines other output may break."""
    found: dict[str, str] = {}
    before = ""
    for line in (line.strip() for line in log.split("\n")):
        if "--version is equivalent to version" in line:
            found["--version is equivalent to version"] = "PASSED"
        if " ... " in line:
            before = line.split(" ... ")[0]
        found.update(_django_line(line))
        if line.startswith("ok") and before:
            found[before] = "PASSED"
    for pattern in _DJANGO_BREAKS:
        for match in re.finditer(pattern, log, re.MULTILINE):
            found[match.group(1)] = "PASSED"
    return found


def _django_line(line: str) -> dict[str, str]:
    """Return the statuses in a line of Django's log."""
    found: dict[str, str] = {}
    for ending in (" ... ok", " ... OK", " ...  OK"):
        if line.endswith(ending):
            moved = line.startswith("Applying sites.0002_alter_domain_unique...test_no_migrations")
            name = line.split("...", 1)[-1].strip() if moved else line
            found[name.rsplit(ending, 1)[0]] = "PASSED"
            break
    if " ... skipped" in line:
        found[line.split(" ... skipped", maxsplit=1)[0]] = "SKIPPED"
    for ending, heading, status in ((" ... FAIL", "FAIL:", "FAILED"), (" ... ERROR", "ERROR:", "ERROR")):
        if line.endswith(ending):
            found[line.split(ending, maxsplit=1)[0]] = status
        if line.startswith(heading) and len(line.split()) > 1:
            found[line.split()[1]] = status
    return found


PARSERS = {
    "django": read_django,
    "matplotlib": read_matplotlib,
    "pytest": read_pytest,
    "pytest_options": read_pytest_options,
    "pytest_v2": read_pytest_v2,
    "seaborn": read_seaborn,
    "sympy": read_sympy,
}


def read_whole_names(log: str) -> dict[str, str]:
    """Return statuses by whole test name, blanks included, from lines of ``pytest -rA``.

    A failure's reason follows its name after `` - ``, which a name may hold, too, so every beginning counts as a name.
    """
    found: dict[str, str] = {}
    for raw in log.split("\n"):
        status, _, rest = _COLOUR.sub("", raw).translate(_CONTROL).rstrip().partition(" ")
        if status in STATUSES and rest:
            parts = rest.split(" - ")
            for number in range(len(parts), 0, -1):
                found[" - ".join(parts[:number])] = status
    return found


def statuses_of(parser: str, log: str) -> dict[str, str]:
    """Return statuses by test: by whole name, and by the name that SWE-bench's parser reads."""
    read = PARSERS[parser](log)
    if parser in ("django", "sympy"):
        return read
    return {**read, **read_whole_names(log)}


def unresolved(expected: Mapping[str, Any], statuses: Mapping[str, str]) -> Sequence[str]:
    """Return the tests without the required status."""
    wrong = [name for name in expected["fail_to_pass"] if _status(name, statuses) not in ("PASSED", "XFAIL")]
    kept = ("PASSED", "XFAIL", "SKIPPED")
    return wrong + [name for name in expected["pass_to_pass"] if _status(name, statuses) not in kept]


def _status(name: str, statuses: Mapping[str, str]) -> str | None:
    # parsers that take the first word of a name give truncated names, too, the last line of which would decide
    ends = [status for other, status in statuses.items() if _is_cut(name) > _is_cut(other) and other.startswith(name)]
    if not ends:
        return statuses.get(name, statuses.get(name.strip()))
    passes = {status in ("PASSED", "XFAIL") for status in ends}
    return ends[0] if len(passes) == 1 else None


def _is_cut(name: str) -> bool:
    """Return True for a name that is truncated within its parameters."""
    return name.count("[") > name.count("]")


def _words(line: str) -> list[str]:
    """Return the words of a line that begins with a status; none if it names no test."""
    words = line.split()
    if not line.startswith(STATUSES) or len(words) < 2 or (words[0] == "SKIPPED" and _COUNT.match(words[1])):
        return []
    return words


def main(log_path: str, expected_path: str, reward_path: str) -> None:
    """Write 1 if all tests have the required status, else 0, and print those that do not."""
    with open(log_path, encoding="utf-8", errors="replace") as file:
        log = file.read()
    with open(expected_path, encoding="utf-8") as file:
        expected = json.load(file)
    wrong = unresolved(expected, statuses_of(expected["parser"], log))
    for name in wrong[:20]:
        print("not as it must be:", name)
    with open(reward_path, "w", encoding="utf-8") as file:
        file.write("0\n" if wrong else "1\n")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8", errors="replace") as tests_log:
        said = tests_log.read()
        if not any(read(said) for read in PARSERS.values()):
            sys.exit("no test has reported a status")  # no reward: the work or the tests' installation is broken
    main(*sys.argv[1:])
