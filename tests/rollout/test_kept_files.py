"""Users' files of several modules: a sibling import works, and runs keep copies of all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from testkit import counting_runs
from testkit.env_servers import env_server

from agentgym import make
from agentgym.errors import UsageError
from agentgym.plugins import COPIES_VARIABLE, run_file
from agentgym.report.methods import methods_of, training_runs
from agentgym.rollout import journal
from agentgym.rollout.kept_files import keep_files, use_kept_files
from agentgym.trainers.train import train
from agentgym.user_modules import files_beside

ENV = """
import steps_of_counting
from parts_of_counting.words import OPENING
from agentgym import Message, Task, ToolCall, ToolEnv, register, tool

class Counting(ToolEnv):
    max_turns = 2

    def start(self, task):
        self.goal = steps_of_counting.goal(task.seed)
        return f"{OPENING} {self.goal}"

    def oracle(self):
        return Message("assistant", "", (ToolCall("say", {"number": self.goal}),))

    @tool
    def say(self, number: int) -> str:
        "Say the number."
        from late_of_counting import ENDING
        self.finish(float(number == self.goal))
        return ENDING

register("ManyFiles-v0", Counting)
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    (folder / "parts_of_counting").mkdir(parents=True)
    (folder / "counting.py").write_text(ENV)
    (folder / "steps_of_counting.py").write_text("def goal(seed):\n    return seed % 3\n")
    (folder / "late_of_counting.py").write_text("ENDING = 'done'\n")
    (folder / "unrelated.py").write_text("raise RuntimeError\n")
    (folder / "parts_of_counting" / "__init__.py").write_text("")
    (folder / "parts_of_counting" / "words.py").write_text("OPENING = 'say'\n")
    return folder


def agentgym(folder: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", "agentgym", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_environment_of_several_files_is_played_here_and_from_its_copies(files: Path, tmp_path: Path) -> None:
    plan = ["eval", "counting.py:ManyFiles-v0", "--policy", "oracle", "--episodes", "4", "--run-dir", "run", "--json"]
    found = json.loads(agentgym(files, *plan))
    assert found["success"] == 1.0
    kept = {path.relative_to(files / "run" / "own_files").as_posix() for path in (files / "run").rglob("*.py")}
    assert {one for one in kept if "counting.py" not in one or "_" in one} == {
        "steps_of_counting.py", "late_of_counting.py", "parts_of_counting/__init__.py", "parts_of_counting/words.py",
    }  # fmt: skip
    assert not list(files.rglob("__pycache__"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (files / "run" / "summary.json").unlink()
    lines = (files / "run" / "episodes.jsonl").read_text().splitlines(keepends=True)
    (files / "run" / "episodes.jsonl").write_text("".join(lines[:2]))
    resumed = json.loads(agentgym(elsewhere, "eval", "--resume", str(files / "run"), "--json"))
    assert (resumed["success"], resumed["num_episodes"]) == (1.0, 4)


def test_servers_and_workers_of_a_run_find_its_copies(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's folder is gone. A file's data, which it opens by ``__file__``, are those beside its copy."""
    (files / "steps_of_counting.py").write_text(
        "from pathlib import Path\ndef goal(seed):\n    return int(Path(__file__).with_name('goal.txt').read_text())\n"
    )
    (files / "goal.txt").write_text("7")
    agentgym(files, "eval", "counting.py:ManyFiles-v0", "--policy", "oracle", "--episodes", "2", "--run-dir", "../run")
    shutil.rmtree(files)
    monkeypatch.chdir(tmp_path)
    use_kept_files(Path("run"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with (
        env_server("counting.py:ManyFiles-v0") as server,
        closing(make("counting.py:ManyFiles-v0", url=server.url)) as env,
    ):
        assert env.reset(seed=0)[0][0].text == "say 7"
    pytest.importorskip("ray")
    from agentgym.trainers.ray.connection import environment_of_run

    worker = "import sys, json; from agentgym.trainers.ray.env_worker import EnvWorker; "
    worker += "EnvWorker(1, '.', json.loads(sys.argv[1])); from agentgym import make; "
    worker += "print(make('counting.py:ManyFiles-v0').reset(seed=0)[0][0].text)"
    sent = json.dumps(environment_of_run("secret"))
    plain = {name: value for name, value in os.environ.items() if name != COPIES_VARIABLE}
    assert COPIES_VARIABLE in sent and "secret" in sent
    told = subprocess.run([sys.executable, "-c", worker, sent], env=plain, capture_output=True, text=True, check=False)
    assert told.stdout == "say 7\n", told.stderr


def test_a_training_run_keeps_the_users_files(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(counting_runs.config(num_steps=1), run_dir)
    (copy,) = (run_dir / "own_files").iterdir()
    assert copy.read_text() == counting_runs.ENV_FILE.read_text()
    config = json.loads((run_dir / "config.json").read_text())
    assert list(config["own_files"]) == [str(counting_runs.ENV_FILE)]
    # more steps keep the copies of the beginning
    train(counting_runs.config(num_steps=2), run_dir, resume=True)
    assert json.loads((run_dir / "config.json").read_text())["own_files"] == config["own_files"]
    line = journal.read(run_dir)[-1]
    assert line["installed"]["numpy"] and line["command"] and "threads" in line and line["blas"]["numpy"]
    # runs of a changed file are another method
    other = tmp_path / "other"
    other.mkdir()
    for name in ("metrics.jsonl",):
        (other / name).write_text((run_dir / name).read_text())
    config["own_files"] = {str(counting_runs.ENV_FILE): "0123456789"}
    (other / "config.json").write_text(json.dumps({**config, "seed": 1, "num_steps": 2}))
    labels = [method.label for method in methods_of(training_runs([run_dir, other]))]
    assert labels[1] == "counting_env.py=012345" and len(labels) == 2


def test_only_what_is_imported_is_a_users_file(files: Path) -> None:
    names = [path.relative_to(files).as_posix() for path in files_beside(files / "counting.py")]
    assert names == [
        "late_of_counting.py", "parts_of_counting/__init__.py", "parts_of_counting/words.py", "steps_of_counting.py",
    ]  # fmt: skip
    found = journal.own_files({"env": {"id": f"{files / 'counting.py'}:ManyFiles-v0"}})
    assert len(found) == 5 and all(found.values())
    (files / "steps_of_counting.py").write_text("def goal(seed):\n    return 1\n")
    changed = journal.own_files({"env": {"id": f"{files / 'counting.py'}:ManyFiles-v0"}})
    assert [name for name in found if found[name] != changed[name]] == [str(files / "steps_of_counting.py")]


def test_two_folders_with_one_module_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"main_{name}.py").write_text("import same_name_in_both\n")
        (tmp_path / name / "same_name_in_both.py").write_text(f"HERE = '{name}'\n")
    run_file(tmp_path / "a" / "main_a.py")
    with pytest.raises(UsageError, match="which has the same module name; rename one of them"):
        run_file(tmp_path / "b" / "main_b.py")


def test_a_missing_file_is_not_copied(tmp_path: Path) -> None:
    assert keep_files(tmp_path, {"env": {"id": "nowhere.py:X-v0"}}) == {"env": {"id": "nowhere.py:X-v0"}}


def test_a_relative_import_names_the_way(tmp_path: Path) -> None:
    (tmp_path / "beside_relative.py").write_text("X = 1\n")
    (tmp_path / "relative.py").write_text("from . import beside_relative\n")
    with pytest.raises(UsageError, match="write `import NAME` in place of `from \\. import NAME`"):
        run_file(tmp_path / "relative.py")
