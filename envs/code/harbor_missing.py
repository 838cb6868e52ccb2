"""Programs, files and modules that a Harbor task's verifier lacks, so that its 0 is no grade.

Two sources name them: the messages of shells, interpreters and loaders in the verifier's output and logs
(``missing.toml``), and the trace of a bash script, which also shows programs whose messages went to ``/dev/null``. The
work can print such messages, too. A name therefore counts only if the tests mention it and the sandbox lacks it. Names
in the work's folder never count. Others that the work may have been meant to provide are *open*: the solution decides
about them (:mod:`agentgym.envs.code.harbor_control`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from agentgym.canonical import packaged
from agentgym.envs.code.harbor import INSTALLS, HarborTask
from agentgym.envs.code.harbor_shadows import NAMES_A_ROOT
from agentgym.sandbox import Sandbox

_MESSAGES: Final = {
    kind: [re.compile(pattern, re.MULTILINE) for pattern in patterns]
    for kind, patterns in packaged(__package__, "missing.toml")["messages"].items()
}
_WRAPPERS: Final = frozenset(packaged(__package__, "missing.toml")["wrappers"])
_CODE: Final = r"(?:py|js|mjs|cjs|ts|rb|pl|pm|lua|sh|php|java|R|so)"
"""Endings of files with programs or modules."""
_OF_TESTS: Final = ("file", "argument", "script")
_NAMES: Final = ("program", "file", "argument")
"""Kinds of which the sandbox shows that they are absent."""
_CHANGES: Final = frozenset(packaged(__package__, "missing.toml")["changes"])
_LACKS: Final[str] = packaged(__package__, "missing.toml")["lacks"]
_PATH_OF_WORK: Final = re.compile(r"\bPATH=(?![\"']?(?:/usr|/bin|/sbin|/opt|/root|\$HOME|~)[\w/.~-]*:?\$)")
_FROM_STANDARD_INPUT: Final = re.compile(r"\b(?:python[\d.]*|node|ruby|perl)\s+(?:-[cme]|-\s|<<)")
_NAME: Final = re.compile(r"[A-Za-z_./][\w./+-]*")
_FUNCTION: Final = r"(?:\bfunction\s+{0}\b|(?<![\w-]){0}\s*\(\s*\))"
_SYSTEM: Final = ("/usr/", "/bin/", "/sbin/", "/opt/", "/lib", "/snap/")


@dataclass(frozen=True, slots=True, order=True)
class Missing:
    """Something that a verifier did not find or could not run.

    Attributes:
        name: a program, path or module; of a network, the words of the message.
        kind: program, module, network, or file, argument of a command, or (broken) script of the tests.
        is_open: True if the work may have been meant to provide it.
        is_absent: True if the sandbox has no program or file of this name. Otherwise only a message says so, which the
            work can forge.
    """

    name: str
    kind: str
    is_open: bool
    is_absent: bool


def missing_in(
    task: HarborTask,
    sandbox: Sandbox,
    output: str,
    trace: str,
    env: Mapping[str, str],
    *,
    work: Iterable[str] = (),
    has_runner: bool = False,
) -> frozenset[Missing]:
    """Return what a verifier called and did not find, without what lies in the work's folder.

    Args:
        task: the task.
        sandbox: the verifier's sandbox, after the run.
        output: what the verifier wrote to its output and its logs.
        trace: commands of a traced bash script; empty if none was traced.
        env: the verifier's variables.
        work: paths of the workspace, at the start or as the agent left it.
        has_runner: modules are open, since a test runner imports those of the work.
    """
    tests = "\n".join(entry.data.decode(errors="replace") for entry in task.tests.values())
    places = {f"{sandbox.workspace}/app": task.workdir, f"{sandbox.workspace}/tests": "/tests"}
    claims, own = set(), {PurePosixPath(path).stem for path in work}
    for kind, name in sorted({*_said(output), *_traced(trace, tests, f"{sandbox.workspace}/tests")}):
        path = next((named + name[len(real) :] for real, named in places.items() if _is_in(name, real)), name)
        is_sure = kind == "network" or _mentions(tests, path) > 0
        if is_sure and not _is_of_the_work(task, own, path, kind) and (kind not in _OF_TESTS or _is_in(path, "/tests")):
            claims.add((kind, path))
    here = {path: task.placed(path, {"/tests": f"{sandbox.workspace}/tests"}) for _, path in claims}
    lacking = set(sandbox.exec(["bash", "-c", _LACKS, "-", *here.values()], env=env, cwd="app").stdout.splitlines())
    found = set()
    for kind, path in claims:
        is_absent = here[path] in lacking and kind in _NAMES
        is_open = _is_open(task, tests, path, kind) or (has_runner and kind == "module")
        if is_absent or kind not in _NAMES:
            found.add(Missing(path, kind, is_open, is_absent))
    return frozenset(found)


def _said(output: str) -> Iterator[tuple[str, str]]:
    for kind, patterns in _MESSAGES.items():
        if kind != "subprocess" or "subprocess.py" in output:
            for pattern in patterns:
                yield from (
                    ("program" if kind == "subprocess" else kind, match[1]) for match in pattern.finditer(output)
                )


def _traced(trace: str, tests: str, folder: str) -> Iterator[tuple[str, str]]:
    """Yield the programs that a traced script calls, also through ``timeout`` and the like, and the tests it names."""
    for line in trace.splitlines():
        try:
            words = shlex.split(line.lstrip("+ ")) if line.startswith("+") else []
        except ValueError:  # the first line of a command with several
            words = line.lstrip("+ ").split()[:1]
        name = _program_of(words)
        if name and not re.search(_FUNCTION.format(re.escape(name)), tests):
            yield "program", name
        if words and words[0] not in _CHANGES:
            yield from (("argument", word) for word in words[1:] if _is_in(word, folder) and word != folder)


def _program_of(words: Sequence[str]) -> str:
    """Return the program of a command, without the wrappers before it; empty if there is none."""
    if list(words[:2]) in (["command", "-v"], ["command", "-V"]):
        return ""
    is_value = False
    for word in words:
        if not (is_value or word in _WRAPPERS or word.startswith("-") or "=" in word or word[:1].isdigit()):
            return word if _NAME.fullmatch(word) else ""
        is_value = re.fullmatch("-[A-Za-z]", word) is not None and word not in ("-i", "-v", "-0", "-r", "-t")
        if word == words[0] and word not in _WRAPPERS:
            return ""
    return ""


def _is_in(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _is_of_the_work(task: HarborTask, own: set[str], path: str, kind: str) -> bool:
    """Return True for paths in the work's folder, and for names of files in it or that the instruction asks for.

    Relative paths are in it, since verifiers start there.
    """
    if kind == "network":
        return False
    if not path.startswith((".", "/")):
        name = re.escape(re.split(r"[./:]", path)[0])
        asked_for = re.search(rf"/{name}(?!\w|-|\.\w)|(?<!\w){name}(?:\.{_CODE}\b|/)", task.instruction)
        return asked_for is not None or (kind == "module" and re.split(r"[./:]", path)[0] in own)
    return _is_in(path, task.workdir) or ("/" in path and not path.startswith("/"))


def _mentions(tests: str, name: str) -> int:
    """Return how often tests name a program, a path, or the first part of a module."""
    word = name if name.startswith("/") else re.split(r"[./:]", name)[0] or name
    return len(re.findall(rf"(?<![\w-]){re.escape(word)}(?![\w-])", tests))


def _is_open(task: HarborTask, tests: str, name: str, kind: str) -> bool:
    if kind == "argument":  # it may be what the work was to write there
        return True
    if kind == "network":
        return INSTALLS.search(tests) is None
    if name.startswith("/"):
        if name.startswith(_SYSTEM):
            return False
        return not (name.startswith("/tests/") and _mentions(tests, name) == 1)  # tests may build programs there
    if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", task.instruction):
        return True
    if kind == "program":
        return _PATH_OF_WORK.search(tests) is not None or any("PATH" in env for env in (task.env, task.shared_env))
    return NAMES_A_ROOT.search(tests) is not None or _FROM_STANDARD_INPUT.search(tests) is not None
