"""Math-v0 and MathTools-v0: published schemas, equal answers, grades, and files that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.math_files import AIME_2024, AIME_2025, MATH_500, write_lines, write_math

from agentgym.check import check_env
from agentgym.envs.mathematics import grading
from agentgym.envs.mathematics.env import DATA_VARIABLE, MathEnv, MathToolsEnv
from agentgym.envs.mathematics.equivalence import is_equivalent, last_boxed
from agentgym.envs.mathematics.grading import Rule, is_right
from agentgym.envs.mathematics.problem_files import read_problems
from agentgym.errors import CorruptDataError, EnvError, MissingExtraError, UnknownNameError, UsageError
from agentgym.evals.suites import load_suite, open_suite
from agentgym.types import Message


def outcome(env: MathEnv | MathToolsEnv, task: str, text: str) -> float:
    env.reset(options={"task": task})
    _, reward, terminated, _, info = env.step(Message("assistant", text))
    assert terminated and info["success"] == (reward == 1.0)
    return float(reward)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_math(tmp_path_factory.mktemp("math"))


# ------------------------------------------------------------------------------------------------------------- files


def test_maths_folder_has_two_splits_in_the_order_of_its_numbers(folder: Path) -> None:
    problems = read_problems(folder)
    assert [(one.id, one.split) for one in problems.values()] == [
        ("test/geometry/7", "test"),
        ("test/prealgebra/1", "test"),
        ("train/algebra/2", "train"),
        ("train/algebra/10", "train"),
    ]
    assert problems["test/geometry/7"].answer == "2\\sqrt{2}\\text{ cm}"
    assert (problems["train/algebra/10"].kind, problems["train/algebra/10"].level) == ("Algebra", "3")


def test_math_500_and_aime_are_read_with_their_columns(tmp_path: Path) -> None:
    (one, two) = read_problems(write_lines(tmp_path / "test.jsonl", MATH_500)).values()
    assert (one.id, one.kind, one.level, one.answer) == (
        "test/algebra/1837.json",
        "Algebra",
        "1",
        "a^2 + 2ab + b^2",
    )
    assert two.split == "test"
    env = MathEnv(problems=tmp_path / "test.jsonl", rule="math")
    assert "\\boxed{}" in env.reset(seed=0)[0][0].text, "without a split to train on, the one for testing"
    aime = read_problems(write_lines(tmp_path / "aime25.jsonl", AIME_2025))
    assert {name: one.answer for name, one in aime.items()} == {"0": "70", "1": "588"}
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(AIME_2024), tmp_path / "aime_2024_problems.parquet")
    read = read_problems(tmp_path / "aime_2024_problems.parquet")
    assert {name: one.answer for name, one in read.items()} == {"2024-I-90": "33", "2024-II-91": "104"}
    without_ids = [{"question": row["problem"], "answer": row["answer"]} for row in AIME_2025]
    assert list(read_problems(write_lines(tmp_path / "aime2025-I.jsonl", without_ids))) == [
        "aime2025-I-0",
        "aime2025-I-1",
    ]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('{"problem": "What?", "solution": "None."}', CorruptDataError, "row 0 has no answer"),
        ('{"answer": "3"}', CorruptDataError, "has no problem"),
        (
            '{"problem": "a", "answer": "1", "id": 1}\n{"problem": "b", "answer": "2", "id": 1}',
            CorruptDataError,
            "twice",
        ),
        (
            '{"problem": "a", "answer": "1"}\n{"problem": "b", "answer": "\\\\frac{1}{"}',
            CorruptDataError,
            "row 1: nobody",
        ),
        ('{"problem": "a", "answer": "\\\\boxed{5}"}', CorruptDataError, "without .*boxed"),
        ("version https://git-lfs.github.com/spec/v1", CorruptDataError, "not JSON"),
        ("[1]", CorruptDataError, "row 0"),
        ("", UsageError, "no problems"),
    ],
)
def test_a_file_that_is_no_problem_file_is_refused(
    tmp_path: Path, text: str, error: type[Exception], words: str
) -> None:
    (tmp_path / "problems.jsonl").write_text(text)
    with pytest.raises(error, match=words):
        MathEnv(problems=tmp_path / "problems.jsonl", rule="math")


def test_without_files_the_error_says_what_to_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=DATA_VARIABLE):
        MathEnv()
    with pytest.raises(UsageError, match="no file or folder"):
        MathEnv(problems=tmp_path / "none.jsonl")
    with pytest.raises(UnknownNameError, match="rule"):
        MathEnv(problems=tmp_path, rule="text")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no problem") as empty:
        MathEnv(problems=tmp_path, rule="math")
    assert "parquet" in str(empty.value)


# ------------------------------------------------------------------------------------------------------ equal answers

MATHS_OWN_CASES = [
    ("\\tfrac{1}{2} + \\frac1{72}", "\\\\frac{1}{2} + 2/3", False),
    ("10, 4, -2", "4, 10, -2", False),
    ("10, 4, 2", "4, 12, 2", False),
    ("\\tfrac{1}{2} +\\! \\frac1{72}", "\\\\dfrac{1}{2} +\\frac{1}{72}", True),
    ("10\\text{ units}", "10 ", True),
    ("10\\text{ units}", "100 ", False),
    ("10", "\\$10", True),
    ("\\left(x-2\\right)\\left(x+2\\right)", "(x-2)(x+2)", True),
    ("0.1, 4, 2", "4, .1, 2", False),
    ("0.1", ".1", True),
    ("10\\%", "10", True),
    ("10\\sqrt{3} + \\sqrt4", "10\\sqrt3 + \\sqrt{4}", True),
    ("\\frac34i", "\\frac{3}{4}i", True),
    ("\\tfrac83", "\\frac{8}{3}", True),
    ("5x - 7y + 11z + 4 = 0", "x + y - z + 2 = 0", False),
]
"""The cases of ``modeling/math_equivalence_test.py`` in hendrycks/math."""


@pytest.mark.parametrize(("given", "wanted", "is_equal"), MATHS_OWN_CASES)
def test_maths_rule_decides_its_authors_cases(given: str, wanted: str, is_equal: bool) -> None:
    assert is_equivalent(given, wanted) == is_equal


def test_maths_rule_compares_texts_that_it_cannot_normalise() -> None:
    assert not is_equivalent("1\\text{ cm}\\text{ or}", "1") and is_equivalent("\\frac", "\\frac")
    assert is_equivalent("x = 5", "5") and not is_equivalent("abc=5", "5")
    assert (
        is_equivalent("0.5", "\\frac12") and is_equivalent("3/4", "\\frac{3}{4}") and not is_equivalent("03/4", "3/4")
    )
    assert is_equivalent("90^\\circ", "90") and not is_equivalent("\\frac{1}2", "\\frac12")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{1}, no: \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{\\text{Sets } \\{1, 2\\}}", "\\text{Sets } \\{1, 2\\}"),
        ("\\fbox{7}", "7"),
        ("It is $\\boxed 3$.", "3"),
        ("\\boxed{}", ""),
        ("\\boxed{1", None),
        ("The answer is 7.", None),
    ],
)
def test_the_last_box_is_the_answer(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


EQUAL = [
    ("0.5", "\\frac{1}{2}"),
    ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"),
    ("(x+1)^2", "x^2+2x+1"),
    ("b^2 + a^2 + 2ba", "a^2 + 2ab + b^2"),
    ("[-3,3]", "[-3, 3]"),
    ("x \\in [-3, 3]", "[-3, 3]"),
    ("25", "25\\%"),
    ("\\frac14", "25\\%"),
    ("2\\sqrt{2}", "2\\sqrt{2}\\text{ cm}"),
    ("\\sqrt{8}\\text{ cm}", "2\\sqrt{2}\\text{ cm}"),
    ("33", "033"),
    ("033", "33"),
    ("1,000", "1000"),
    ("\\{2, 1\\}", "\\{1, 2\\}"),
    ("\\text{B}", "B"),
]
DIFFERENT = [
    ("0.25", "\\frac{1}{2}"),
    ("(-3, 3)", "[-3, 3]"),
    ("[-3, 3)", "[-3, 3]"),
    ("(3, -3)", "(-3, 3)"),
    ("2500", "25\\%"),
    ("2\\sqrt{3}", "2\\sqrt{2}\\text{ cm}"),
    ("330", "33"),
    ("x^2+1", "x^2+2x+1"),
    ("1, 2, 3", "\\{1, 2\\}"),
    ("", "33"),
    ("\\text{C}", "B"),
]


@pytest.mark.parametrize(("given", "wanted"), EQUAL)
def test_math_verify_takes_equal_values_for_equal(given: str, wanted: str) -> None:
    pytest.importorskip("math_verify")
    assert is_right(given, wanted, "math_verify")


@pytest.mark.parametrize(("given", "wanted"), DIFFERENT)
def test_math_verify_tells_other_values_apart(given: str, wanted: str) -> None:
    pytest.importorskip("math_verify")
    assert not is_right(given, wanted, "math_verify")


def test_an_answer_that_never_ends_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify")
    monkeypatch.setattr(grading, "_CPU_S", 3)
    endless = "9^{9^{9^{9^{9}}}}"
    assert not is_right(f"{endless} - {endless} + 2", "2\\pi", "math_verify")
    assert is_right("2", "2", "math_verify")
    assert not is_right("1" * 5_000, "1", "math_verify")


@pytest.mark.parametrize("said", [{"failed": "MemoryError"}, {"is_equal": False}])
def test_a_wanted_answer_that_does_not_equal_itself_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, object]
) -> None:
    class Grader:
        def call(self, *_: object, **__: object) -> dict[str, object]:
            return said

    grading._check_itself.cache_clear()
    monkeypatch.setattr(grading, "_MATH_VERIFY", Grader())
    with pytest.raises(EnvError, match="with itself"):
        is_right("3", "2", "math_verify")


# ------------------------------------------------------------------------------------------------------ environments


def test_right_answers_score_one_and_wrong_ones_nothing(folder: Path) -> None:
    pytest.importorskip("math_verify")
    env = MathEnv(problems=folder)
    wrong = {"test/geometry/7": "\\sqrt{2}", "test/prealgebra/1": "75\\%"}
    for task in env.tasks("test"):
        said = env.reset(options={"task": task})[0][0].text
        assert "\\boxed{}" in said and env.task_type in ("Geometry, level 2", "Prealgebra, level 2")
        assert env.step(env.oracle())[4]["success"], task.id
        assert outcome(env, task.id, f"\\boxed{{{wrong[task.id]}}}") == 0.0
        assert outcome(env, task.id, "It is certain.") == 0.0
        hidden = f"<think>\\boxed{{{task.data['answers'][0]}}}</think> I do not know."
        assert outcome(env, task.id, hidden) == 0.0, "thinking is no answer"
    assert outcome(env, "test/prealgebra/1", "<think>\\boxed{3}</think> It is $\\boxed{0.25}$.") == 1.0
    env.close()


@pytest.mark.parametrize("rule", ["math", "math_verify"])
def test_the_kit_finds_nothing_wrong(folder: Path, rule: Rule) -> None:
    if rule == "math_verify":
        pytest.importorskip("math_verify")
    report = check_env(lambda: MathEnv(problems=folder, rule=rule), num_episodes=2)
    failures = {check.name: check.detail for check in report.failures}
    assert set(failures) <= {"splits"}, failures  # no split valid


def test_the_interpreter_helps_and_the_answer_is_graded(folder: Path) -> None:
    env = MathToolsEnv(problems=folder, rule="math", sandbox="process")
    env.reset(options={"task": "train/algebra/2"})
    assert env.step("python: 1 / 2")[0][0].text == "0.5"
    _, reward, terminated, _, info = env.step(Message("assistant", "Half of it."))
    assert not terminated and not info["is_valid"]
    _, reward, terminated, _, info = env.step(Message("assistant", "\\boxed{0.5}"))
    assert terminated and reward == 1.0 and info["success"]
    assert outcome(env, "train/algebra/2", "\\boxed{2}") == 0.0
    env.close()


def test_the_kit_finds_nothing_wrong_with_tools(folder: Path) -> None:
    report = check_env(lambda: MathToolsEnv(problems=folder, rule="math", sandbox="process"), num_episodes=1)
    failures = {check.name: check.detail for check in report.failures}
    assert set(failures) <= {"splits"}, failures


def test_a_task_of_another_version_of_the_file_is_refused(folder: Path) -> None:
    env = MathEnv(problems=folder, rule="math")
    task = env.tasks("test")[0]
    with pytest.raises(UsageError, match="another answer"):
        env.reset(options={"task": type(task)(id=task.id, split="test", seed=0, data={**task.data, "answers": ["1"]})})
    with pytest.raises(UsageError, match="no 'x'"):
        env.reset(options={"task": type(task)(id="x", split="test", seed=0, data={"problem": "x"})})


def test_math_verify_is_asked_for_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym.errors._is_installed", lambda module: module != "math_verify")
    with pytest.raises(MissingExtraError, match=r"\[math\]'"):
        MathEnv(problems=folder)


# ------------------------------------------------------------------------------------------------------------- suites


def test_suites_open_on_files_and_say_which_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify")
    monkeypatch.delenv("AGENTGYM_MATH_DATA", raising=False)
    for name in ("math-500", "aime-2025"):
        with pytest.raises(UsageError, match="AGENTGYM_MATH_DATA"):
            open_suite(load_suite(name))
        assert "AGENTGYM_MATH_DATA" in load_suite(name).mend
    monkeypatch.setenv("AGENTGYM_MATH_DATA", str(tmp_path))
    write_lines(tmp_path / "math-500.jsonl", MATH_500)
    write_lines(tmp_path / "aime-2025.jsonl", AIME_2025)
    assert [len(open_suite(load_suite(name)).parts[0].tasks) for name in ("math-500", "aime-2025")] == [2, 2]
    with pytest.raises(UsageError, match=r"aime-2024\.parquet"):
        open_suite(load_suite("aime-2024"))
