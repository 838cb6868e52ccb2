"""Broken task directories at the command line: one line and exit code 2, or a failed episode, and never a reward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
COPIES = "FROM agentgym-sandbox:1\nCOPY a.txt /app/\n"
FILES = {
    "task.toml": "[verifier]\ntimeout_sec = 30.0\n",
    "instruction.md": "Do nothing.",
    "environment/Dockerfile": "FROM agentgym-sandbox:1\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "true\n",
}


def written(folder: Path, files: dict[str, str | bytes | None]) -> Path:
    """Write a task; None leaves a file out, and a name that ends in / is a folder."""
    for path, content in {**FILES, **files}.items():
        file = folder / "task" / path
        (file if path.endswith("/") else file.parent).mkdir(parents=True, exist_ok=True)
        if content is not None and not path.endswith("/"):
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def arguments(command: str, folder: Path) -> list[str]:
    options = ["sandbox=process", "source=harbor", f"harbor_path={folder}", "--split", "test", "--policy", "oracle"]
    return [command, "agentgym/SWE-v0", *options]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"task.toml": "= 1"}, "task.toml cannot be read"),
        ({"task.toml": "[verifier]\ntimeout = 3\n"}, "task.toml, line 2: verifier.timeout: is no field"),
        ({"task.toml": "[verifier]\ntimeout_sec = 'x'\n"}, "task.toml, line 2: verifier.timeout_sec"),
        ({"environment/Dockerfile": "FROM a:1\nFETCH x\n"}, "Dockerfile, line 2: FETCH: is no instruction"),
        ({"environment/Dockerfile": "FROM a:1\nRUN x\n"}, "line 2: RUN x). Build it where"),
        ({"task.toml": b"name = '\xff'"}, "task.toml cannot be read"),
        ({"task.toml": None}, "no Harbor task"),
        ({"instruction.md": b"caf\xe9"}, "instruction.md is not UTF-8"),
        ({"instruction.md": None}, "has no instruction.md"),
        ({"instruction.md": None, "instruction.md/": ""}, "has no instruction.md"),
        ({"environment/Dockerfile": b"FROM a:1\nENV A=\xff\n"}, "Dockerfile is not UTF-8"),
        ({"environment/Dockerfile": ""}, "Dockerfile has no FROM"),
        ({"environment/Dockerfile": None}, "has neither environment/Dockerfile nor a docker_image"),
        ({"environment/.dockerignore": b"\xff", "environment/Dockerfile": COPIES}, ".dockerignore is not UTF-8"),
        ({"environment/.dockerignore": "a\n[z-a]", "environment/Dockerfile": COPIES}, ".dockerignore, line 2: '[z-a]'"),
        (
            {"environment/Dockerfile": COPIES.replace("a.txt", "gone.txt")},
            "line 2: COPY: gone.txt: there is no such file",
        ),
        ({"tests/test.sh": None}, "has no tests/test.sh"),
        ({"environment/docker-compose.yaml": "services: {}"}, "needs environment/docker-compose.yaml"),
        ({"task.toml": "[verifier.env]\nA = '${GONE_FROM_HERE}'\n"}, "GONE_FROM_HERE is not set on this machine"),
    ],
)
def test_a_broken_task_is_one_line(
    run: Command, tmp_path: Path, files: dict[str, str | bytes | None], words: str
) -> None:
    done = run(*arguments("play", written(tmp_path, files)))
    assert words in done.assert_one_line_error().replace("\n", " ")


def test_a_solution_that_changes_nothing_is_submitted(run: Command, tmp_path: Path) -> None:
    done = run(*arguments("play", written(tmp_path, {})))
    assert (done.code, "success, return" in done.out, "turn 3" in done.out) == (0, True, False)


def test_a_broken_verifier_is_a_failed_episode(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = written(
        tmp_path / "tasks", {"tests/test.sh": "set -e\nno_such_program\necho 1 > /logs/verifier/reward.txt\n"}
    )
    done = run(*arguments("eval", folder))
    assert done.code != 0
    assert "has a broken verifier" in done.out + done.err
    assert "Traceback" not in done.out + done.err
