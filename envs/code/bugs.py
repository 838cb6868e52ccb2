"""The generator of repair problems: a small module, public and hidden tests, and a bug that the hidden tests catch.

Modules are drawn from families of functions (:mod:`agentgym.envs.code.function_families`), bugs from
:data:`~agentgym.envs.code.mutations.BUG_KINDS`. The hidden tests catch every bug, and the module without the bug is the
repair. The split depends on the text of that module, so no module is in two splits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from agentgym.envs.code.function_families import (
    BRANCHES,
    FOLDS,
    LOOPS,
    ONE_LINERS,
    WITH_HELPERS,
    Family,
    Function,
    draw,
)
from agentgym.envs.code.mutations import BUG_KINDS, Mutation, mutations
from agentgym.envs.code.problems import RepairProblem, is_in_split
from agentgym.envs.code.trusted_code import EndlessError, Outcome, TrustedModules
from agentgym.errors import UsageError, require_known

PublicTests = Literal["fail", "pass", "none"]
"""Public tests that fail with the bug, tests that pass with it (only docstrings reveal the bug), or no public tests."""

FILE: Final = "main.py"
PUBLIC_TESTS: Final = "test_main.py"
HIDDEN_TESTS: Final = "test_hidden.py"

_NUM_PUBLIC = 3  # cases per function
_PATIENCE = 300


@dataclass(frozen=True, slots=True)
class _Level:
    num_functions: int
    num_bugs: int
    groups: Sequence[Sequence[Family]]


_LEVELS: Final = (
    _Level(1, 1, (ONE_LINERS,)),
    _Level(1, 1, (BRANCHES, FOLDS)),
    _Level(3, 1, (BRANCHES, FOLDS, LOOPS)),
    _Level(4, 2, (LOOPS, WITH_HELPERS)),
)


@dataclass(frozen=True, slots=True)
class BugDifficulty:
    """Difficulty of generated repairs.

    Args:
        level: 0: one function of one line; 1: one function with a branch or a loop; 2: three functions with nested
            loops; 3: four functions, including helpers, and two bugs.
        num_bugs: number of functions with a bug; None for the level's number.
        public_tests: see :data:`PublicTests`.
        bug_kinds: kinds of bugs, from :data:`~agentgym.envs.code.mutations.BUG_KINDS`.
        shows_file: include the module in the statement, so that the agent need not read it first.

    Raises:
        UsageError: a value is out of range, or a name is unknown.
    """

    level: int = 1
    num_bugs: int | None = None
    public_tests: PublicTests = "fail"
    bug_kinds: Sequence[str] = tuple(BUG_KINDS)
    shows_file: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "bug_kinds", tuple(self.bug_kinds))
        if not 0 <= self.level < len(_LEVELS):
            raise UsageError(f"level must be from 0 to {len(_LEVELS) - 1}, got {self.level}")
        most = _LEVELS[self.level].num_functions
        if self.num_bugs is not None and not 1 <= self.num_bugs <= most:
            raise UsageError(f"num_bugs must be from 1 to {most} at level {self.level}, got {self.num_bugs}")
        require_known("kind of public tests", self.public_tests, get_args(PublicTests))
        for kind in self.bug_kinds:
            require_known("kind of bug", kind, BUG_KINDS)
        if not self.bug_kinds:
            raise UsageError(f"bug_kinds is empty; name some of {', '.join(BUG_KINDS)}")

    def as_data(self) -> dict[str, Any]:
        """Return the difficulty as a task's data.

        Example:
            >>> BugDifficulty(bug_kinds=["off_by_one"]).as_data()
            {'level': 1, 'num_bugs': 1, 'public_tests': 'fail', 'bug_kinds': ['off_by_one'], 'shows_file': True}
        """
        num_bugs = _LEVELS[self.level].num_bugs if self.num_bugs is None else self.num_bugs
        return {"level": self.level, "num_bugs": num_bugs, "public_tests": self.public_tests,
                "bug_kinds": list(self.bug_kinds), "shows_file": self.shows_file}  # fmt: skip

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> BugDifficulty:
        """Return the difficulty in a task's data; missing values are the defaults."""
        return BugDifficulty(**{entry.name: data[entry.name] for entry in fields(BugDifficulty) if entry.name in data})


@lru_cache(maxsize=256)  # cached, since the members of a group have the same problem
def generate_repair(seed: int, split: str, difficulty: BugDifficulty) -> RepairProblem:
    """Generate the repair problem of a task, which depends only on the arguments.

    Raises:
        UnknownNameError: there is no such split.
        UsageError: too few modules have bugs of the requested kinds.

    Example:
        >>> problem = generate_repair(0, "train", BugDifficulty(level=0))
        >>> print(problem.files["main.py"].strip())
        def f(m, n):
            \"\"\"Return True if m equals n.\"\"\"
            return m != n
        >>> sorted(problem.files), list(problem.solution)
        (['main.py', 'test_main.py'], ['main.py'])
    """
    # A generator seeded only by the task, so that an episode's seed cannot move the task to another split.
    rng = random.Random(seed)
    for _ in range(_PATIENCE):
        functions = _draw_functions(rng, _LEVELS[difficulty.level])
        if not is_in_split(_source_of(functions), split):
            continue
        module = _Module(functions)
        bugs = module.draw_bugs(rng, difficulty)
        problem = module.problem(rng, bugs, difficulty) if bugs else None
        if problem is not None:
            return problem
    raise UsageError(
        f"none of {_PATIENCE} modules of level {difficulty.level} has {difficulty.as_data()['num_bugs']} bugs of the "
        f"kinds {', '.join(difficulty.bug_kinds)} with public tests that {difficulty.public_tests}; allow more kinds"
    )


def with_bugs(source: str, bugs: Sequence[Mutation]) -> str:
    """Return the source with several bugs that do not overlap."""
    for bug in sorted(bugs, key=lambda bug: bug.start, reverse=True):
        source = bug.applied(source)
    return source


@dataclass(frozen=True, slots=True)
class Case:
    """A call and its expected value."""

    name: str
    """Name of the test method."""
    call: str
    expected: Any


def _draw_functions(rng: random.Random, level: _Level) -> list[Function]:
    functions: list[Function] = []
    names: set[str] = set()
    while len(functions) < level.num_functions:
        function = draw(rng.choice(list(rng.choice(list(level.groups)))), rng, sorted(names))
        defined = {line[4:].partition("(")[0] for line in function.source.splitlines() if line.startswith("def ")}
        if not defined & names:  # helpers have fixed names
            functions.append(function)
            names |= defined
    return functions


def _source_of(functions: Sequence[Function]) -> str:
    return "\n\n\n".join(function.source for function in functions) + "\n"


class _Module:
    """A correct module and its test cases."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self.source = _source_of(functions)
        answers = TrustedModules({FILE: self.source})
        self.cases = [
            Case(f"test_{function.name}_{number}", call, _value(answers.outcome(FILE, call), call))
            for function in functions
            for number, call in enumerate(function.calls, 1)
        ]

    def draw_bugs(self, rng: random.Random, difficulty: BugDifficulty) -> tuple[Mutation, ...]:
        """Draw the required number of bugs in different functions, each of which the tests catch; empty if there are
        too few.
        """
        candidates = list(mutations(self.source, difficulty.bug_kinds))
        by_kind = {kind: [bug for bug in candidates if bug.kind == kind] for kind in difficulty.bug_kinds}
        chosen: list[Mutation] = []
        while any(by_kind.values()) and len(chosen) < difficulty.as_data()["num_bugs"]:
            # kinds are equally likely, independent of their number of places
            kind = rng.choice([kind for kind in by_kind if by_kind[kind]])
            bug = by_kind[kind].pop(rng.randrange(len(by_kind[kind])))
            if bug.function not in (other.function for other in chosen) and self.caught(bug.applied(self.source)):
                chosen.append(bug)
        return tuple(chosen) if len(chosen) == difficulty.as_data()["num_bugs"] else ()

    def caught(self, source: str) -> tuple[Case, ...]:
        """Return the cases that a changed module fails; none if it does not load or does not end."""
        try:
            answers = TrustedModules({FILE: source})
            return tuple(case for case in self.cases if not is_right(answers.outcome(FILE, case.call), case.expected))
        except (ValueError, EndlessError):
            return ()

    def problem(self, rng: random.Random, bugs: Sequence[Mutation], difficulty: BugDifficulty) -> RepairProblem | None:
        """Return the problem, or None if there are no public tests of the required kind."""
        broken, public = with_bugs(self.source, bugs), difficulty.public_tests
        failing = self.caught(broken)
        if not failing:
            return None
        files = {FILE: broken}
        if public != "none":
            shown = self._public(rng, failing, public)
            if not shown:
                return None
            files[PUBLIC_TESTS] = render_tests("TestMain", "from main import *", shown)
        hidden = render_tests("TestHidden", "from main import *", self.cases)
        return RepairProblem(
            statement=_statement(len(bugs), public) + (f"\n\n{broken.strip()}" if difficulty.shows_file else ""),
            files=files,
            hidden_tests={HIDDEN_TESTS: hidden},
            solution={FILE: self.source},
            public_tests=() if public == "none" else (PUBLIC_TESTS,),
            num_passing_at_start=len(self.cases) - len(failing),
        )

    def _public(self, rng: random.Random, failing: Sequence[Case], public: PublicTests) -> list[Case]:
        right = [case for case in self.cases if case not in failing]
        num_public = _NUM_PUBLIC * len({case.name.rpartition("_")[0] for case in self.cases})
        if public == "pass":
            shown = rng.sample(right, min(num_public, len(right)))
        else:
            first = rng.choice(list(failing))
            others = [case for case in self.cases if case is not first]
            shown = [first, *rng.sample(others, num_public - 1)]
        return [case for case in self.cases if case in shown]


def is_right(outcome: Outcome, expected: object) -> bool:
    """Return True if a test that compares with ``expected`` passes."""
    return not outcome.raised and bool(outcome.value == expected)


def render_tests(class_name: str, imports: str, cases: Sequence[Case]) -> str:
    """Return the source of a ``unittest`` module with one test per case.

    Example:
        >>> print(render_tests("TestAdd", "from add import add", [Case("test_add_1", "add(1, 2)", 3)]))
        import unittest
        <BLANKLINE>
        from add import add
        <BLANKLINE>
        <BLANKLINE>
        class TestAdd(unittest.TestCase):
            def test_add_1(self):
                self.assertEqual(add(1, 2), 3)
        <BLANKLINE>
        <BLANKLINE>
        if __name__ == "__main__":
            unittest.main()
        <BLANKLINE>
    """
    methods = "\n".join(
        f"    def {case.name}(self):\n        self.assertEqual({case.call}, {case.expected!r})\n" for case in cases
    )
    return (
        f"import unittest\n\n{imports}\n\n\nclass {class_name}(unittest.TestCase):\n{methods}\n\n"
        'if __name__ == "__main__":\n    unittest.main()\n'
    )


def _value(outcome: Outcome, call: str) -> object:
    assert not outcome.raised, f"{call} raises {outcome.raised}"
    return outcome.value


def _statement(num_bugs: int, public: PublicTests) -> str:
    what = "a bug" if num_bugs == 1 else f"{num_bugs} bugs, in different functions"
    tests: Mapping[str, str] = {
        "fail": f" {PUBLIC_TESTS} has some tests, of which it fails at least one.",
        "pass": f" {PUBLIC_TESTS} has some tests, which do not show it.",
        "none": "",
    }
    return (
        f"{FILE} has {what}: it does not do what its docstrings say.{tests[public]} "
        "Repair it, so that hidden tests of every function pass, then submit."
    )
