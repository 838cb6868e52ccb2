"""Generated modules with bugs: deterministic, verified, and what they claim is what unittest finds."""

import random
from pathlib import Path
from typing import get_args

import pytest
from testkit.unittest_runs import passed_tests

from agentgym.envs.code.bugs import FILE, BugDifficulty, PublicTests, generate_repair
from agentgym.envs.code.function_families import BRANCHES, FOLDS, LOOPS, ONE_LINERS, WITH_HELPERS, Family, draw
from agentgym.envs.code.mutations import BUG_KINDS, mutations
from agentgym.envs.code.problems import RepairProblem, edits
from agentgym.envs.code.trusted_code import EndlessError, TrustedModules
from agentgym.envs.splits import SPLIT_SHARES
from agentgym.errors import UnknownNameError, UsageError

LEVELS = range(4)


def problems(
    level: int, split: str = "train", num_problems: int = 20, public: PublicTests = "fail"
) -> list[RepairProblem]:
    difficulty = BugDifficulty(level=level, public_tests=public)
    return [generate_repair(seed, split, difficulty) for seed in range(num_problems)]


@pytest.mark.parametrize(
    "family", [*ONE_LINERS, *BRANCHES, *FOLDS[::6], *LOOPS, *WITH_HELPERS], ids=lambda f: f.names[0]
)
def test_families_answer_all_their_calls_and_have_bugs_to_find(family: Family) -> None:
    for seed in range(3):
        function = draw(family, random.Random(seed))
        answers = TrustedModules({"m": function.source})
        right = [answers.outcome("m", call) for call in function.calls]
        assert [call for call, outcome in zip(function.calls, right, strict=True) if outcome.raised] == []
        assert len(function.calls) >= 8
        assert max(len(line) for line in function.source.splitlines()) <= 120
        num_found = 0
        for mutation in mutations(function.source, tuple(BUG_KINDS)):
            try:
                broken = TrustedModules({"m": mutation.applied(function.source)})
                num_found += [broken.outcome("m", call) for call in function.calls] != right
            except (ValueError, EndlessError):
                continue
        assert num_found >= 2


@pytest.mark.parametrize("level", LEVELS)
def test_a_problem_is_a_function_of_seed_split_and_difficulty(level: int) -> None:
    assert problems(level, num_problems=5) == problems(level, num_problems=5)
    assert len({problem.files[FILE] for problem in problems(level)}) >= 17


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("public", get_args(PublicTests))
def test_unittest_finds_what_a_problem_claims(level: int, public: PublicTests, tmp_path: Path) -> None:
    for number, problem in enumerate(problems(level, num_problems=2, public=public)):
        before, after = tmp_path / f"{number}-before", tmp_path / f"{number}-after"
        num_tests, passed = passed_tests(problem.files | problem.hidden_tests, problem.hidden_tests, before)
        assert len(passed) == problem.num_passing_at_start
        assert len(passed) < num_tests
        repaired = problem.files | problem.solution | problem.hidden_tests
        num_tests, passed = passed_tests(repaired, problem.hidden_tests, after)
        assert len(passed) == num_tests

        assert bool(problem.public_tests) == (public != "none")
        if problem.public_tests:
            num_public, right = passed_tests(problem.files, problem.public_tests, before)
            assert (len(right) == num_public) == (public == "pass")
            num_public, right = passed_tests(problem.files | problem.solution, problem.public_tests, after)
            assert len(right) == num_public > 0


@pytest.mark.parametrize("level", LEVELS)
def test_edits_lead_from_the_bug_to_the_solution(level: int) -> None:
    for problem in problems(level):
        text = problem.files[FILE]
        steps = edits(text, problem.solution[FILE])
        for edit in steps:
            assert text.count(edit.old) == 1
            text = text.replace(edit.old, edit.new)
        assert text == problem.solution[FILE]


def test_both_bugs_of_two_have_to_be_repaired() -> None:
    for problem in problems(3):
        first, *others = edits(problem.files[FILE], problem.solution[FILE])
        assert others
        half = problem.files[FILE].replace(first.old, first.new)
        assert half != problem.solution[FILE]


@pytest.mark.parametrize("level", LEVELS)
def test_no_module_is_in_two_splits(level: int) -> None:
    modules = {
        split: {problem.solution[FILE] for problem in problems(level, split, num_problems=60 >> level)}
        for split in SPLIT_SHARES
    }
    for split, mine in modules.items():
        others = set().union(*(modules[other] for other in SPLIT_SHARES if other != split))
        assert mine and not mine & others


def test_every_kind_of_bug_can_be_asked_for() -> None:
    for kind in BUG_KINDS:
        problem = generate_repair(1, "train", BugDifficulty(level=2, bug_kinds=(kind,)))
        made = {mutation.applied(problem.solution[FILE]) for mutation in mutations(problem.solution[FILE], [kind])}
        assert problem.files[FILE] in made


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="level must be from 0 to 3, got 4"):
        BugDifficulty(level=4)
    with pytest.raises(UsageError, match="num_bugs must be from 1 to 1 at level 1, got 2"):
        BugDifficulty(num_bugs=2)
    with pytest.raises(UnknownNameError, match="did you mean 'off_by_one'"):
        BugDifficulty(bug_kinds=("off_by_on",))
    with pytest.raises(UnknownNameError, match="kind of public tests"):
        BugDifficulty(public_tests="some")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bug_kinds is empty"):
        BugDifficulty(bug_kinds=())
    with pytest.raises(UnknownNameError, match="unknown split 'tests'"):
        generate_repair(0, "tests", BugDifficulty())
    with pytest.raises(UsageError, match="none of 300 modules of level 0 has 1 bugs of the kinds missing_branch"):
        generate_repair(0, "train", BugDifficulty(level=0, bug_kinds=("missing_branch",)))


def test_edits_of_ambiguous_lines_take_in_their_neighbours() -> None:
    before, after = "a\nx\nb\nx\nc\n", "a\nx\nb\ny\nc\n"
    (edit,) = edits(before, after)
    assert before.count(edit.old) == 1
    assert before.replace(edit.old, edit.new) == after


def test_a_missing_first_line_can_be_put_back() -> None:
    (edit,) = edits("b\nc\n", "a\nb\nc\n")
    assert "b\nc\n".replace(edit.old, edit.new) == "a\nb\nc\n"
