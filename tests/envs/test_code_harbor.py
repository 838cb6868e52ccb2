"""Harbor's directory format: what is understood, what is refused, and what the message says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentgym.envs.code.harbor import HarborTasks, load_harbor_task
from agentgym.errors import CorruptDataError, UsageError

Write = Callable[..., Path]

TOML = """
schema_version = "1.1"
[task]
name = "org/hello"
[verifier]
timeout_sec = 12.0
env = { LEVEL = "2" }
[environment]
memory_mb = 256
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(name: str = "hello", **files: str) -> Path:
        texts = {
            "task.toml": TOML,
            "instruction.md": "Write /app/hello.txt.",
            "environment/Dockerfile": "FROM agentgym-sandbox:1\nWORKDIR /app\n",
            "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
            "solution/solve.sh": "echo hello > /app/hello.txt\n",
        } | files
        for path, text in texts.items():
            if text:
                (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name / path).write_text(text, encoding="utf-8")
        return tmp_path / name

    return made


def test_a_task_directory(write: Write) -> None:
    dockerfile = """
        # what it starts from
        FROM agentgym-sandbox:1 AS start
        ENV MODE=fast DEPTH=3
        ENV GREETING hello to all
        WORKDIR /srv
        WORKDIR site
        COPY page.html start.html
        COPY data \\
             more/
        CMD ["sleep", "infinity"]
    """
    files = {"environment/page.html": "<p>", "environment/data/a.csv": "1", "environment/data/deep/b.csv": "2"}
    task = load_harbor_task(write(**files, **{"environment/Dockerfile": dockerfile}))
    assert (task.name, task.image, task.workdir, task.memory_mb) == (
        "org/hello",
        "agentgym-sandbox:1",
        "/srv/site",
        256,
    )
    assert task.files == {"start.html": b"<p>", "more/a.csv": b"1", "more/deep/b.csv": b"2"}
    assert task.env == {"MODE": "fast", "DEPTH": "3", "GREETING": "hello to all"}
    assert (task.tests_timeout_s, task.tests_env) == (12.0, {"LEVEL": "2"})
    assert set(task.tests) == {"test.sh"}
    assert set(task.solution) == {"solve.sh"}


def test_the_whole_context_can_be_copied(write: Write) -> None:
    dockerfile = "FROM agentgym-sandbox:1\nWORKDIR /app\nCOPY . .\n"
    task = load_harbor_task(write(**{"environment/Dockerfile": dockerfile, "environment/src/a.py": "x"}))
    assert task.files == {"src/a.py": b"x"}


def test_older_spellings(write: Write) -> None:
    toml = 'version = "1.0"\n[environment]\nmemory = "2G"\ndocker_image = "mine:3"\n'
    task = load_harbor_task(write(**{"task.toml": toml, "environment/Dockerfile": ""}))
    assert (task.name, task.image, task.workdir, task.memory_mb) == ("hello", "mine:3", "/app", 2048)
    assert task.tests_timeout_s == 600.0


def test_a_ready_image_needs_no_build(write: Write) -> None:
    dockerfile = "FROM python:3.13\nWORKDIR /src\nRUN pip install flask\nCOPY gone .\n"
    toml = '[environment]\ndocker_image = "mine:3"\n'
    task = load_harbor_task(write(**{"task.toml": toml, "environment/Dockerfile": dockerfile}))
    assert (task.image, task.workdir, task.files) == ("mine:3", "/src", {})


@pytest.mark.parametrize("line", ["RUN pip install flask", "COPY a.txt /etc/a.txt", "COPY --from=x /a /b", "VOLUME /x"])
def test_what_needs_a_build_is_refused_with_the_command_that_builds_it(write: Write, line: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_harbor_task(write(**{"environment/Dockerfile": f"FROM debian:13\n{line}\n", "environment/a.txt": "a"}))
    message = str(refused.value)
    assert "docker build -t harbor/hello" in message
    assert 'docker_image = "harbor/hello"' in message
    assert line.partition(" ")[0] in message


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"task.toml": ""}, "has no task.toml"),
        ({"instruction.md": ""}, "has no instruction.md"),
        ({"tests/test.sh": "", "tests/other.py": "x"}, "has no tests/test.sh"),
        ({"environment/Dockerfile": ""}, "neither environment/Dockerfile nor a docker_image"),
        ({"task.toml": "[[steps]]\nname = 'one'\n"}, "needs steps in task.toml"),
        ({"environment/docker-compose.yaml": "services:"}, "needs environment/docker-compose.yaml"),
        ({"task.toml": "[environment]\ngpus = 1\n"}, "needs GPUs"),
    ],
)
def test_what_is_missing_or_cannot_be_had_is_named(write: Write, files: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        load_harbor_task(write(**files))


@pytest.mark.parametrize(
    "files",
    [
        {"task.toml": "= 1"},
        {"task.toml": "verifier = 3"},
        {"task.toml": "[environment]\nmemory = 'much'\n"},
        {"environment/Dockerfile": "FROM agentgym-sandbox:1\nCOPY gone .\n"},
        {"environment/Dockerfile": "FROM agentgym-sandbox:1\nCOPY ../task.toml .\n"},
    ],
)
def test_corrupt_tasks_are_named(write: Write, files: dict[str, str]) -> None:
    with pytest.raises(CorruptDataError):
        load_harbor_task(write(**files))


def test_a_folder_of_tasks(write: Write, tmp_path: Path) -> None:
    write("b-task")
    write("a-task")
    tasks = HarborTasks(tmp_path, "test", {"source": "harbor"})
    assert [task.id for task in tasks] == ["test-a-task", "test-b-task"]
    assert tasks[0].data["name"] == "a-task"
    assert [task.id for task in tasks[1:]] == ["test-b-task"]
    assert len(HarborTasks(tmp_path / "a-task", "test", {})) == 1
    with pytest.raises(UsageError, match="no Harbor task at"):
        HarborTasks(tmp_path / "a-task" / "tests", "test", {})


def test_a_task_changes_with_its_tests(write: Write) -> None:
    before = load_harbor_task(write()).content_hash
    assert load_harbor_task(write()).content_hash == before
    assert load_harbor_task(write(**{"tests/test.sh": "exit 1\n"})).content_hash != before
