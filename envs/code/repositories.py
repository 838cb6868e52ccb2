"""The generator of small repositories: a package, tests, a README, and an issue whose cause is in another module.

An issue describes a function of the top module; its cause is a bug of :mod:`agentgym.envs.code.mutations` in a lower
module. The repository's own tests still pass, while hidden tests fail. The sources before the bug decide a repository's
split.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from string import Template
from typing import Any, Literal, get_args

from agentgym.envs.code.bugs import Case, is_right, render_tests
from agentgym.envs.code.mutations import BUG_KINDS, Mutation, mutations
from agentgym.envs.code.problems import RepairProblem, is_in_split
from agentgym.envs.code.themes import THEMES, Theme, draw_call
from agentgym.envs.code.trusted_code import EndlessError, TrustedModules
from agentgym.errors import UsageError, require_known

IssueDetail = Literal["example", "plain"]
"""``example``: an issue with a call, its result and the expected result. ``plain``: an issue that only names the
function."""

_NUM_CALLS = 12  # cases per function
_NUM_PUBLIC = 3
_MAX_BUGS = 2
_PATIENCE = 300


@dataclass(frozen=True, slots=True)
class RepositoryDifficulty:
    """Difficulty of generated repositories.

    Args:
        themes: possible themes, from :data:`~agentgym.envs.code.themes.THEMES`.
        num_bugs: number of bugs, 1 or 2, in different modules, each with its own issue.
        issue: see :data:`IssueDetail`.
        bug_kinds: kinds of bugs, from :data:`~agentgym.envs.code.mutations.BUG_KINDS`.

    Raises:
        UsageError: a value is out of range, or a name is unknown.
    """

    themes: Sequence[str] = tuple(THEMES)
    num_bugs: int = 1
    issue: IssueDetail = "example"
    bug_kinds: Sequence[str] = tuple(BUG_KINDS)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bug_kinds", tuple(self.bug_kinds))
        object.__setattr__(self, "themes", tuple(self.themes))
        if not 1 <= self.num_bugs <= _MAX_BUGS:
            raise UsageError(f"num_bugs must be from 1 to {_MAX_BUGS}, got {self.num_bugs}")
        for what, names, known in (
            ("theme", self.themes, tuple(THEMES)),
            ("kind of bug", self.bug_kinds, tuple(BUG_KINDS)),
            ("detail of the issue", (self.issue,), get_args(IssueDetail)),
        ):
            if not names:
                raise UsageError(f"no {what} is given; name some of {', '.join(known)}")
            for name in names:
                require_known(what, name, known)

    def as_data(self) -> dict[str, object]:
        """Return the difficulty as a task's data."""
        return {"themes": list(self.themes), "num_bugs": self.num_bugs, "issue": self.issue,
                "bug_kinds": list(self.bug_kinds)}  # fmt: skip

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> RepositoryDifficulty:
        """Return the difficulty in a task's data; missing values are the defaults."""
        names = [entry.name for entry in fields(RepositoryDifficulty)]
        return RepositoryDifficulty(**{name: data[name] for name in names if name in data})


@lru_cache(maxsize=256)  # cached, since the members of a group have the same problem
def generate_repository(seed: int, split: str, difficulty: RepositoryDifficulty) -> RepairProblem:
    """Generate the problem of a task, which depends only on the arguments.

    Raises:
        UnknownNameError: there is no such split.
        UsageError: too few repositories have bugs of the requested kinds.

    Example:
        >>> problem = generate_repository(0, "train", RepositoryDifficulty(themes=["search"]))
        >>> sorted(problem.files)[:3], list(problem.solution)
        (['README.md', 'archive/__init__.py', 'archive/index.py'], ['archive/words.py'])
    """
    rng = random.Random(seed)
    for _ in range(_PATIENCE):
        theme = THEMES[rng.choice(list(difficulty.themes))]
        package = rng.choice(list(theme.packages))
        constants = {key: rng.choice(list(values)) for key, values in theme.constants.items()}
        sources = {
            name: Template(text).substitute(constants, package=package).strip("\n") + "\n"
            for name, text in theme.modules.items()
        }
        if is_in_split([package, sources], split):
            repository = _Repository(rng, theme, package, sources)
            bugs = repository.draw_bugs(rng, difficulty)
            if bugs:
                return repository.problem(rng, bugs, difficulty.issue)
    raise UsageError(
        f"none of {_PATIENCE} repositories has {difficulty.num_bugs} bugs of the kinds "
        f"{', '.join(difficulty.bug_kinds)} that show in the topmost module; allow more kinds, or fewer bugs"
    )


@dataclass(frozen=True, slots=True)
class _Bug:
    module: str
    source: str
    """Source of the whole module with the bug."""
    symptom: Case
    """Call of the top module whose result is wrong because of this bug alone."""


class _Repository:
    """A correct repository and its test cases."""

    def __init__(self, rng: random.Random, theme: Theme, package: str, sources: Mapping[str, str]) -> None:
        self.theme, self.package, self.sources = theme, package, sources
        self.top = list(sources)[-1]
        answers = self._answers({})
        assert answers is not None, f"a repository about {package} does not load"
        self.cases: dict[str, list[Case]] = {name: [] for name in sources}
        for place, template in theme.calls.items():
            module, _, function = place.partition(".")
            calls = tuple(dict.fromkeys(draw_call(template, rng) for _ in range(_NUM_CALLS)))
            for number, call in enumerate(calls, 1):
                outcome = answers.outcome(f"{package}.{module}", call)
                assert not outcome.raised, f"{call} raises {outcome.raised}"
                self.cases[module].append(Case(f"test_{function}_{number}", call, outcome.value))

    def draw_bugs(self, rng: random.Random, difficulty: RepositoryDifficulty) -> tuple[_Bug, ...]:
        """Draw the required number of bugs in different lower modules; empty if there are too few."""
        chosen: list[_Bug] = []
        lower = [name for name in self.sources if name != self.top]
        rng.shuffle(lower)
        for module in lower:
            bug = self._draw_bug(rng, module, difficulty.bug_kinds)
            if bug is not None:
                chosen.append(bug)
            if len(chosen) == difficulty.num_bugs:
                break
        wrong = self.silently_wrong({bug.module: bug.source for bug in chosen})
        symptoms = [bug.symptom for bug in chosen]
        is_sound = len(chosen) == difficulty.num_bugs and len({case.name for case in symptoms}) == len(chosen)
        return tuple(chosen) if is_sound and all(case in wrong for case in symptoms) else ()

    def _draw_bug(self, rng: random.Random, module: str, kinds: Sequence[str]) -> _Bug | None:
        """Draw a bug of a module that is visible in the top module; all kinds are equally likely."""
        by_kind: dict[str, list[Mutation]] = {}
        for candidate in mutations(self.sources[module], kinds):
            by_kind.setdefault(candidate.kind, []).append(candidate)
        while by_kind:
            kind = rng.choice(sorted(by_kind))
            source = by_kind[kind].pop(rng.randrange(len(by_kind[kind]))).applied(self.sources[module])
            if not by_kind[kind]:
                del by_kind[kind]
            if wrong := self.silently_wrong({module: source}):
                return _Bug(module, source, rng.choice(wrong))
        return None

    def silently_wrong(self, changed: Mapping[str, str]) -> list[Case]:
        """Return the top module's cases with a wrong value; none if one raises, since a traceback reveals the place."""
        answers = self._answers(changed)
        if answers is None:
            return []
        try:
            outcomes = [answers.outcome(f"{self.package}.{self.top}", case.call) for case in self.cases[self.top]]
        except EndlessError:
            return []
        if any(outcome.raised for outcome in outcomes):
            return []
        pairs = zip(self.cases[self.top], outcomes, strict=True)
        return [case for case, outcome in pairs if not is_right(outcome, case.expected)]

    def right(self, answers: TrustedModules) -> dict[str, list[Case]]:
        """Return the passing cases by module; a case that does not end does not pass."""
        passing: dict[str, list[Case]] = {module: [] for module in self.cases}
        for module, cases in self.cases.items():
            for case in cases:
                with suppress(EndlessError):
                    if is_right(answers.outcome(f"{self.package}.{module}", case.call), case.expected):
                        passing[module].append(case)
        return passing

    def problem(self, rng: random.Random, bugs: Sequence[_Bug], detail: IssueDetail) -> RepairProblem:
        """Return the repository with the bugs and its issue."""
        changed = {bug.module: bug.source for bug in bugs}
        answers = self._answers(changed)
        assert answers is not None  # the bugs have been tried before, so this loads
        right = self.right(answers)
        shown = {module: rng.sample(cases, min(_NUM_PUBLIC, len(cases))) for module, cases in right.items()}
        public = self._tests({module: cases for module, cases in shown.items() if cases}, "tests/test_{}.py")
        hidden = self._tests({module: cases for module, cases in self.cases.items() if cases}, "test_hidden_{}.py")
        files = {f"{self.package}/{name}.py": source for name, source in {**self.sources, **changed}.items()}
        files |= {f"{self.package}/__init__.py": f'"""{self.theme.summary}"""\n', "README.md": self._readme()}
        files["tests/__init__.py"] = ""  # otherwise unittest does not search the folder
        issues = [self._issue(bug, detail, answers) for bug in bugs]
        return RepairProblem(
            statement="\n\n".join([*issues, _TASK]),
            files={**files, **public},
            hidden_tests=hidden,
            solution={f"{self.package}/{name}.py": self.sources[name] for name in changed},
            public_tests=tuple(sorted(public)),
            num_passing_at_start=sum(len(cases) for cases in right.values()),
        )

    def _answers(self, changed: Mapping[str, str]) -> TrustedModules | None:
        """Load the repository with some modules changed; return None if it does not load."""
        sources = {**self.sources, **changed}
        try:
            return TrustedModules({f"{self.package}.{name}": source for name, source in sources.items()})
        except ValueError:
            return None

    def _tests(self, cases: Mapping[str, Sequence[Case]], path: str) -> dict[str, str]:
        return {
            path.format(module): render_tests(
                f"Test{module.capitalize()}", f"from {self.package}.{module} import *", chosen
            )
            for module, chosen in cases.items()
        }

    def _readme(self) -> str:
        modules = "".join(
            f"* `{self.package}.{name}`: {source.splitlines()[0].strip(chr(34))}\n"
            for name, source in self.sources.items()
        )
        return f"# {self.package}\n\n{self.theme.summary}\n\n{modules}\nTests: `python3 -m unittest`\n"

    def _issue(self, bug: _Bug, detail: IssueDetail, answers: TrustedModules) -> str:
        function = bug.symptom.call.partition("(")[0]
        title = f"# `{function}` gives wrong results"
        if detail == "plain":
            return f"{title}\n\n`{self.package}.{self.top}.{function}` does not always do what its docstring says."
        outcome = answers.outcome(f"{self.package}.{self.top}", bug.symptom.call)
        imports = f"from {self.package}.{self.top} import {function}"
        return (
            f"{title}\n\nWith `{imports}`, the call\n\n    {bug.symptom.call}\n\n"
            f"gives\n\n    {outcome.value!r}\n\nbut it should give\n\n    {bug.symptom.expected!r}"
        )


_TASK = (
    "Find the cause in the repository, which is the current folder, and repair it there. The docstrings are right. "
    "Hidden tests of all modules decide; submit when you are done."
)
