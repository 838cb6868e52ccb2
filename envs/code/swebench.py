"""Conversion of SWE-bench's rows to task directories in Harbor's format, for ``agentgym/SWE-v0``.

A row has ``instance_id``, ``repo``, ``version``, ``base_commit``, ``patch``, ``test_patch``, ``problem_statement``,
``FAIL_TO_PASS`` and ``PASS_TO_PASS``, as SWE-bench Verified publishes them. Commands and parsers by repository are
those of SWE-bench's harness (``harness/constants/python.py`` and ``harness/log_parsers/python.py``, package swebench
4.1.0, MIT).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from agentgym.cache import whole_file
from agentgym.canonical import packaged
from agentgym.envs.rows import read_rows, text_field
from agentgym.errors import CorruptDataError, UsageError

IMAGE: Final = "swebench/sweb.eval.x86_64.{name}:latest"
"""SWE-bench's own images. ``{name}`` is the id in lower case with ``_1776_`` for ``__``."""
WORKDIR: Final = "/testbed"
_NO_TESTS: Final = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_DIFF: Final = re.compile(r"^diff --git a/(.*) b/(.*)$", re.MULTILINE)
_IMAGE_COLUMNS: Final = ("image_name", "docker_image")
COLUMNS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("instance_id", "repo", "version", "problem_statement"), "read"),
    **dict.fromkeys(("patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", *_IMAGE_COLUMNS), "read"),
    **dict.fromkeys(("base_commit", "environment_setup_commit"), "in the image"),
    **dict.fromkeys(
        ("hints_text", "all_hints_text", "created_at", "difficulty", "pull_number", "issue_numbers"), "no effect"
    ),
    **dict.fromkeys(("commit_url", "commit_urls", "pr_url", "issue_url", "license", "license_name"), "no effect"),
}
"""Treatment of the columns of SWE-bench and of data sets in its form. Others may change how work is graded, such as
commands of their own, and are refused unless they are empty."""


@dataclass(frozen=True, slots=True)
class Runner:
    """The test command of a repository and the parser of its log."""

    command: str
    parser: str
    setup: str = ""


_PYTEST: Final = "pytest -rA"
_FILE: Final = packaged(__package__, "swebench.toml")
RUNNERS: Final[Mapping[str, Runner]] = {repo: Runner(**fields) for repo, fields in _FILE["runners"].items()}
"""Runners of the repositories of SWE-bench Verified; others use pytest."""
_TEXTS: Final[Mapping[str, str]] = _FILE["files"]
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
_EARLY_ASTROPY: Final = ("0.", "1.")
_OLD_DJANGO: Final = "1.9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A row of SWE-bench."""

    id: str
    repo: str
    version: str
    problem: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    image: str = ""
    """Image that the row names; empty if it names none."""

    @property
    def runner(self) -> Runner:
        """Runner of the repository's tests."""
        found = RUNNERS.get(self.repo, Runner(_PYTEST, "pytest"))
        if self.repo == "astropy/astropy" and self.version.startswith(_EARLY_ASTROPY):
            return Runner("pytest -rA -vv -o console_output_style=classic --tb=no", found.parser)
        if self.repo == "django/django" and self.version == _OLD_DJANGO:
            return Runner("./tests/runtests.py --verbosity 2", found.parser, found.setup)
        return found

    @property
    def test_files(self) -> tuple[str, ...]:
        """Files that the test patch changes."""
        return tuple(dict.fromkeys(path for pair in _DIFF.findall(self.test_patch) for path in pair))

    @property
    def directives(self) -> tuple[str, ...]:
        """Return the runner's arguments: the test files in the test patch, or, for Django, their modules."""
        paths = [after for _, after in _DIFF.findall(self.test_patch) if not after.endswith(_NO_TESTS)]
        if self.repo != "django/django":
            return tuple(paths)
        return tuple(path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in paths)


def read_instances(path: str | Path, ids: Sequence[str] = (), dropped: Sequence[str] = ()) -> tuple[Instance, ...]:
    """Return all rows of a file, or those with given ids.

    Args:
        path: the file.
        ids: ids of the rows to return; empty for all.
        dropped: columns that :data:`COLUMNS` lacks, and that are to have no effect.

    Raises:
        UsageError: there is no such file, no row with an id, or a column is unknown.
        CorruptDataError: a row is incomplete.
    """
    found = dict[str, Instance]()
    for number, row in enumerate(read_rows(Path(path))):
        place = f"{path}, row {number}"
        unknown = [name for name, value in row.items() if name not in (*COLUMNS, *dropped) and value not in _EMPTY]
        if unknown:
            raise UsageError(
                f"{place}: unknown column {unknown[0]!r}, which may change how work is graded; if it does not, leave "
                f"it out: --drop {unknown[0]}"
            )
        one = _instance(row, place)
        found[one.id] = one
    if missing := [name for name in ids if name not in found]:
        raise UsageError(f"{path} has no instance {missing[0]!r}")
    if not found:
        raise UsageError(f"{path} has no rows")
    return tuple(found[name] for name in ids) if ids else tuple(found.values())


def write_harbor_task(instance: Instance, folder: Path, image: str = IMAGE) -> Path:
    """Write an instance as a task directory below a folder and return its path.

    Args:
        instance: the row.
        folder: folder of the task directories; an existing directory with the same name is overwritten.
        image: name of the image, with ``{name}`` or ``{instance_id}``; an image in the row takes precedence.
    """
    root = folder / instance.id
    tagged = instance.id.lower().replace("__", "_1776_")
    named = instance.image or image.format(name=tagged, instance_id=instance.id)
    judge = resources.files("agentgym.envs.code.inside").joinpath("swebench_judge.py")
    expected = {
        "parser": instance.runner.parser,
        "fail_to_pass": instance.fail_to_pass,
        "pass_to_pass": instance.pass_to_pass,
    }
    config = _TEXTS["task.toml"].format(name=json.dumps(instance.id), image=json.dumps(named))
    files = {
        "instruction.md": _TEXTS["instruction.md"].format(problem=instance.problem.strip()),
        "tests/test.sh": _test_script(instance),
        "tests/test.patch": instance.test_patch,
        "tests/expected.json": json.dumps(expected, indent=1),
        "tests/judge.py": judge.read_text(encoding="utf-8"),
        "solution/solve.sh": _TEXTS["solution/solve.sh"].format(workdir=WORKDIR, patch=instance.patch.rstrip("\n")),
    }
    (root / "task.toml").unlink(missing_ok=True)  # a folder with it is a task, so it is written last
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    with whole_file(root / "task.toml") as partial:
        partial.write_text(config, encoding="utf-8")
    return root


def _instance(row: Mapping[str, Any], place: str) -> Instance:
    try:
        return Instance(
            id=_plain_name(text_field(row, "instance_id")),
            repo=text_field(row, "repo"),
            version=str(row.get("version") or ""),
            problem=text_field(row, "problem_statement"),
            patch=text_field(row, "patch"),
            test_patch=text_field(row, "test_patch"),
            fail_to_pass=_names(row["FAIL_TO_PASS"]),
            pass_to_pass=_names(row["PASS_TO_PASS"]),
            image=next((str(row[name]) for name in _IMAGE_COLUMNS if row.get(name)), ""),
        )
    except KeyError as error:
        raise CorruptDataError(f"{place} has no {error}; its keys are {', '.join(map(str, row))}") from None
    except ValueError as error:
        raise CorruptDataError(f"{place}: {error}") from error


def _names(value: object) -> tuple[str, ...]:
    """Return the names of tests, given as a list or, as in the published files, as JSON text of a list."""
    names = json.loads(value) if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"FAIL_TO_PASS and PASS_TO_PASS are lists of names, got {str(value)[:60]!r}")
    return tuple(names)


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(f"instance_id {name!r} cannot be the name of a folder")
    return name


def _test_script(instance: Instance) -> str:
    runner = instance.runner
    return _TEXTS["tests/test.sh"].format(
        workdir=WORKDIR,
        files=" ".join(map(shlex.quote, instance.test_files)),
        setup=f"{runner.setup}\n" if runner.setup else "",
        command=f"{runner.command} {' '.join(map(shlex.quote, instance.directives))}",
    )
