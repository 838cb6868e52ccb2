"""The real engine: all of Exercism, generated problems, and cheats on both environments."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentgym.check.injection import cheats
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.envs.code.code_repair import CodeRepairEnv
from agentgym.envs.code.exercism import FILE, NOT_GRADABLE, Exercise, load_exercises
from agentgym.envs.code.grading import grade_suite
from agentgym.envs.code.repair_env import RepairEnv
from agentgym.envs.code.shared_pool import SandboxKind, shared_pool
from agentgym.envs.code.swe import SWEEnv
from agentgym.errors import SandboxImageError

SHARED = Path(os.environ.get("AGENTGYM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
DATA = SHARED / FILE

pytestmark = pytest.mark.docker


def grades(exercise: Exercise) -> tuple[bool, bool]:
    """Whether its example and its stub pass its tests."""
    pool = shared_pool(SandboxKind(backend="docker", max_open=4))
    tests = {name.removesuffix(".py"): source for name, source in exercise.tests.items()}
    example, stub = (grade_suite(pool, files, tests).is_success for files in (exercise.example, exercise.stub))
    return example, stub


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_file(), reason=f"needs {FILE} in AGENTGYM_SHARED_DATA")
def test_all_examples_of_exercism_pass_and_all_stubs_fail() -> None:
    exercises = {slug: one for slug, one in load_exercises(DATA).items() if slug not in NOT_GRADABLE}
    assert len(exercises) >= 137 - len(NOT_GRADABLE)
    with ThreadPoolExecutor(4) as threads:
        found = dict(zip(exercises, threads.map(grades, exercises.values()), strict=True))
    assert {slug: pair for slug, pair in found.items() if pair != (True, False)} == {}


@pytest.mark.skipif(not DATA.is_file(), reason=f"needs {FILE} in AGENTGYM_SHARED_DATA")
def test_an_episode_of_exercism() -> None:
    assert succeeds(CodeRepairEnv(source="exercism", exercism_path=DATA, sandbox="docker"))


@pytest.mark.parametrize("made", [(CodeRepairEnv, {"level": 3}), (SWEEnv, {"num_bugs": 2})], ids=["repair", "swe"])
def test_an_episode_of_a_generated_task(made: tuple[type[RepairEnv], dict[str, Any]]) -> None:
    kind, options = made
    assert succeeds(kind(sandbox="docker", **options))


@pytest.mark.parametrize("made", [(CodeRepairEnv, {"level": 2}), (SWEEnv, {})], ids=["repair", "swe"])
def test_no_cheat_scores(made: tuple[type[RepairEnv], dict[str, Any]]) -> None:
    kind, options = made
    subject = Subject(lambda: kind(sandbox="docker", require=["filesystem", "user"], **options), None, 1, 0)
    assert cheats(subject).startswith("none of 1")


def test_a_harbor_task_in_its_image(tmp_path: Path) -> None:
    task = tmp_path / "count"
    for path, text in {
        "task.toml": '[environment]\ndocker_image = "agentgym-sandbox:1"\n',
        "instruction.md": "Write the number of lines of /usr/share/tabset/std into /usr/share/tabset/count.",
        "environment/Dockerfile": "FROM agentgym-sandbox:1\nWORKDIR /usr/share/tabset\n",
        "tests/test.sh": "python3 -m pytest -q /tests/test_count.py && echo 1 > /logs/verifier/reward.txt\n",
        "tests/test_count.py": "from pathlib import Path\n\n\ndef test_count():\n"
        '    text = Path("/usr/share/tabset/std").read_bytes()\n'
        '    assert int(Path("/usr/share/tabset/count").read_text()) == text.count(b"\\n")\n',
        "solution/solve.sh": "cd /usr/share/tabset && wc -l < std > count\n",
    }.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text, encoding="utf-8")
    assert succeeds(SWEEnv(source="harbor", harbor_path=tmp_path, sandbox="docker"))

    (task / "task.toml").write_text('[environment]\ndocker_image = "agentgym-no-such-image:1"\n', encoding="utf-8")
    env = SWEEnv(source="harbor", harbor_path=tmp_path)
    with pytest.raises(SandboxImageError, match="agentgym-no-such-image:1"):
        env.reset(seed=0)
    env.close()


def succeeds(env: Env) -> bool:
    """Whether the oracle does."""
    try:
        env.reset(seed=0)
        for _ in range(20):
            _, _, terminated, truncated, info = env.step(env.oracle())
            if terminated or truncated:
                return bool(info["success"])
        return False
    finally:
        env.close()
