"""Generated repositories: what their issue and their tests claim is what unittest finds; and patches of them."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.unittest_runs import passed_tests

from agentgym.envs.code.patches import patch_of
from agentgym.envs.code.problems import edits
from agentgym.envs.code.repositories import RepositoryDifficulty, generate_repository
from agentgym.envs.code.themes import THEMES
from agentgym.envs.splits import SPLIT_SHARES
from agentgym.errors import UnknownNameError, UsageError


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("num_bugs", [1, 2])
def test_unittest_finds_what_a_repository_claims(theme: str, num_bugs: int, tmp_path: Path) -> None:
    problem = generate_repository(3, "train", RepositoryDifficulty(themes=(theme,), num_bugs=num_bugs))
    assert problem == generate_repository(3, "train", RepositoryDifficulty(themes=(theme,), num_bugs=num_bugs))
    before, after, public = tmp_path / "before", tmp_path / "after", tmp_path / "public"

    num_tests, passed = passed_tests(problem.files | problem.hidden_tests, problem.hidden_tests, before)
    assert len(passed) == problem.num_passing_at_start
    assert len(passed) < num_tests
    repaired = problem.files | problem.solution | problem.hidden_tests
    assert len(passed_tests(repaired, problem.hidden_tests, after)[1]) == num_tests
    num_public, passed = passed_tests(problem.files, problem.public_tests, public)
    assert len(passed) == num_public > 0  # the repository's own tests show nothing

    assert len(problem.solution) == num_bugs == problem.statement.count("gives wrong results")
    top = list(THEMES[theme].modules)[-1]
    assert not any(path.endswith(f"/{top}.py") for path in problem.solution)  # the cause is elsewhere
    for path, text in problem.solution.items():
        assert len(edits(problem.files[path], text)) == 1


@pytest.mark.parametrize("theme", THEMES)
def test_issues_are_true(theme: str, tmp_path: Path) -> None:
    for seed in range(3):
        problem = generate_repository(seed, "train", RepositoryDifficulty(themes=(theme,)))
        _, call, gives, should = (part.strip() for part in problem.statement.split("\n\n    "))
        imports = problem.statement.partition("With `")[2].partition("`")[0]
        call, gives = call.partition("\n")[0], gives.partition("\n")[0]
        should = should.partition("\n")[0]
        assert gives != should
        for name, files, value in (
            ("before", problem.files, gives),
            ("after", problem.files | problem.solution, should),
        ):
            test = f"import unittest\n{imports}\n\nclass T(unittest.TestCase):\n    def test(self):\n"
            test += f"        self.assertEqual(repr({call}), {value!r})\n"
            assert (
                len(passed_tests(files | {"test_issue.py": test}, ["test_issue.py"], tmp_path / f"{seed}-{name}")[1])
                == 1
            )


def test_a_plain_issue_gives_no_example() -> None:
    problem = generate_repository(0, "train", RepositoryDifficulty(issue="plain"))
    assert "does not always do what its docstring says" in problem.statement
    assert "gives\n" not in problem.statement


def test_no_repository_is_in_two_splits() -> None:
    seen: dict[str, str] = {}
    for split in SPLIT_SHARES:
        for seed in range(8):
            problem = generate_repository(seed, split, RepositoryDifficulty())
            sound = repr(sorted((problem.files | problem.solution).items()))
            assert seen.setdefault(sound, split) == split


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="num_bugs must be from 1 to 2, got 3"):
        RepositoryDifficulty(num_bugs=3)
    with pytest.raises(UnknownNameError, match="unknown theme 'shops'; did you mean 'shop'"):
        RepositoryDifficulty(themes=("shops",))
    with pytest.raises(UsageError, match="no theme is given"):
        RepositoryDifficulty(themes=())
    with pytest.raises(UnknownNameError, match="detail of the issue"):
        RepositoryDifficulty(issue="long")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- patches

PATHS = st.sampled_from(["a.py", "pkg/b.py", "pkg/deep/c.txt"])
CONTENTS = st.text(st.sampled_from("ab\n \r\x0c\u2028é"), max_size=12).map(str.encode)
FILES = st.dictionaries(PATHS, CONTENTS, max_size=3)


@given(before=FILES, after=FILES)
def test_git_makes_of_the_start_what_the_patch_was_made_of(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    patch = patch_of(before, after)
    folder = tmp_path_factory.mktemp("patched")
    for path, data in before.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    if patch:
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        done = subprocess.run(command, input=patch.encode(), cwd=folder, capture_output=True, check=False)
        assert done.returncode == 0, f"{done.stderr.decode()}\n{patch}"
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == after


def test_a_binary_file_is_named() -> None:
    assert "GIT binary patch\nliteral 1\n" in patch_of({"x": b"\xff"}, {"x": b"\xfe"})
