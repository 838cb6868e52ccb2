"""Harbor's directory format: what is understood, what is refused, and what the message says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentgym.envs.code.dockerfile import with_image
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
    contents = {path: entry.data for path, entry in task.files.items() if entry.is_file}
    assert contents == {"start.html": b"<p>", "more/a.csv": b"1", "more/deep/b.csv": b"2"}
    assert task.env == {"MODE": "fast", "DEPTH": "3", "GREETING": "hello to all"}
    assert (task.tests_timeout_s, task.tests_env) == (12.0, {"LEVEL": "2"})
    assert set(task.tests) == {"test.sh"}
    assert set(task.solution) == {"solve.sh"}


def test_the_whole_context_can_be_copied(write: Write) -> None:
    dockerfile = "FROM agentgym-sandbox:1\nWORKDIR /app\nCOPY . .\n"
    task = load_harbor_task(write(**{"environment/Dockerfile": dockerfile, "environment/src/a.py": "x"}))
    assert {"src/a.py", "Dockerfile"} == {path for path, entry in task.files.items() if entry.is_file}, "as Docker"


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
        ({"task.toml": "[[steps]]\nname = 'one'\n"}, "task.toml, line 1: steps: the task needs steps"),
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


@pytest.mark.parametrize(
    ("dockerfile", "workdir", "env"),
    [
        ("FROM a:1\nWORKDIR /a\nWORKDIR b/../c\n", "/a/c", {}),
        (
            "FROM a:1\nENV A=1 \\\n # a remark\n\n  B='$A' C=\"x $D\" D=$A\nENV E=$A\n",
            "/app",
            {"A": "1", "B": "$A", "C": "x ", "D": "", "E": "1"},
        ),
        ("FROM a:1\nENV A=1\nENV B=${A:+set} C=${A:-no} D=\\$A\n", "/app", {"A": "1", "B": "set", "C": "1", "D": "$A"}),
        ("FROM a:1\nARG V=3\nENV W=$V\n", "/app", {"W": "3"}),
        ("FROM x:1 AS base\nENV A=1\nWORKDIR /b\nFROM y:1\nFROM base\nENV B=2\n", "/b", {"A": "1", "B": "2"}),
        ("FROM x:1\nENV A=1\nWORKDIR /b\nFROM a:1\n", "/app", {}),
        (
            '# syntax=docker/dockerfile:1\nFROM --platform=linux/amd64 a:1\nCMD ["x"]\nEXPOSE 1\nENTRYPOINT []\n',
            "/app",
            {},
        ),
        ("FROM ${VAR:-a:1}\nENV A=${b:-'two words'}\n", "/app", {"A": "two words"}),
        ("from a:1\r\nenv A=1\r\nworkdir /w\r\n", "/w", {"A": "1"}),
    ],
)
def test_dockerfiles_are_read_as_docker_does(write: Write, dockerfile: str, workdir: str, env: dict[str, str]) -> None:
    task = load_harbor_task(write(**{"environment/Dockerfile": dockerfile}))
    assert str(task.workdir) == workdir
    assert {name: with_image(value, {}) for name, value in task.env.items()} == env


@pytest.mark.parametrize(
    ("dockerfile", "words"),
    [
        ("FROM a:1\nFETCH x\n", "line 2: FETCH: is no instruction"),
        ("FROM a:1\n\nENV A\n", "line 3: ENV: expected NAME=VALUE"),
        ("WORKDIR /a\nFROM a:1\n", "line 1: WORKDIR: comes before FROM"),
        ("# nothing\n", "has no FROM"),
        ("FROM a:1\nENV A=${B%x}\n", "line 2: ENV: .*of Docker's forms"),
        ('FROM a:1\nCOPY ["a" .\n', "line 2: COPY: expected files and a target"),
        ("FROM ${BASE}\n", "line 1: FROM: .*has no value"),
        ("FROM a:1 b\n", "line 1: FROM: expected an image"),
        ("# escape=`\nFROM a:1\n", "only the escape character"),
        ("FROM a:1\nWORKDIR $HOME\nCOPY . .\n", "line 2: WORKDIR: .*variable of the image"),
    ],
)
def test_wrong_dockerfiles_are_named_by_line(write: Write, dockerfile: str, words: str) -> None:
    with pytest.raises(CorruptDataError, match=words):
        load_harbor_task(write(**{"environment/Dockerfile": dockerfile}))


@pytest.mark.parametrize(
    "line", ["COPY <<EOF a.txt", 'ENTRYPOINT ["/start.sh"]', "ADD a.tar.gz .", "HEALTHCHECK CMD true", "ONBUILD RUN x"]
)
def test_instructions_that_need_a_build_are_refused(write: Write, line: str) -> None:
    with pytest.raises(UsageError, match=f"line 2: {line.partition(' ')[0]}.*docker build -t"):
        load_harbor_task(write(**{"environment/Dockerfile": f"FROM a:1\n{line}\n", "environment/a.tar.gz": "x"}))


def test_dockerignore_rules(write: Write) -> None:
    rules = "# what stays out\n**/*.log\n/build\nsecret*\n!secret.md\ndocs/[a-c]*\n"
    names = ("a.log", "deep/b.log", "build/x", "deep/build/y", "secret.txt", "secret.md", "docs/b.txt", "docs/z.txt")
    files = {f"environment/{name}": "x" for name in names}
    dockerfile = "FROM a:1\nWORKDIR /app\nCOPY . /app/\n"
    task = load_harbor_task(
        write(**files, **{"environment/.dockerignore": rules, "environment/Dockerfile": dockerfile})
    )
    kept = {path for path, entry in task.files.items() if entry.is_file}
    assert kept == {"deep/build/y", "secret.md", "docs/z.txt", "Dockerfile", ".dockerignore"}


def test_copies_by_pattern_and_before_a_deeper_workdir(write: Write) -> None:
    files = {"environment/a.txt": "a", "environment/b.txt": "b", "environment/c.md": "c"}
    task = load_harbor_task(write(**files, **{"environment/Dockerfile": "FROM a:1\nWORKDIR /app\nCOPY *.txt ./in/\n"}))
    assert set(task.files) == {"in/a.txt", "in/b.txt"}
    dockerfile = "FROM a:1\nWORKDIR /app\nCOPY a.txt .\nWORKDIR sub\n"
    with pytest.raises(UsageError, match=r"COPY to /app/a\.txt, outside of /app/sub"):
        load_harbor_task(write(**files, **{"environment/Dockerfile": dockerfile}))


@pytest.mark.parametrize(
    ("toml", "error", "words"),
    [
        ("[environment]\nimage = 'x'\n", CorruptDataError, "line 2: environment.image: is no field"),
        ("[verifier]\ntimeout_sec = 'soon'\n", CorruptDataError, "line 2: verifier.timeout_sec"),
        ("[verifier]\ntimeout_sec = 0\n", CorruptDataError, "line 2: verifier.timeout_sec"),
        ("[environment.env]\nA = 1\n", CorruptDataError, "line 2: environment.env.A"),
        ("[rewards]\nx = 1\n", CorruptDataError, "line 1: rewards: is no field"),
        ("[environment.healthcheck]\ncommand = 'x'\n", UsageError, "needs a healthcheck"),
        ("[environment]\nnetwork_mode = 'allowlist'\n", UsageError, "line 2: .*allowed hosts"),
        ("[environment]\nos = 'Windows'\n", UsageError, "another system than Linux"),
        ("[verifier]\nenvironment_mode = 'separate'\n", UsageError, "another environment for the verifier"),
        ("[agent]\nuser = 'root'\n", UsageError, "users by name"),
        ("[[verifier.collect]]\ncommand = 'x'\n", UsageError, "collect artifacts"),
    ],
)
def test_fields_that_are_not_read_are_refused_by_line(
    write: Write, toml: str, error: type[UsageError], words: str
) -> None:
    with pytest.raises(error, match=words):
        load_harbor_task(write(**{"task.toml": toml}))


def test_fields_without_effect_are_taken(write: Write) -> None:
    toml = """
        version = "1.0"
        source = "org/set"
        artifacts = ["/logs/artifacts/x", { source = "/app/y" }]
        [metadata]
        author_name = "A"
        difficulty = 3
        [agent]
        timeout_sec = 900.0
        [environment]
        build_timeout_sec = 600.0
        cpus = 1
        storage = "10G"
        memory_mb = 128
        gpus = 0
        allow_internet = true
    """
    assert load_harbor_task(write(**{"task.toml": toml})).memory_mb == 128


def test_other_files_that_are_not_read_are_refused(write: Write) -> None:
    for name in ("tests/.harborignore", "trajectory.json"):
        folder = write(name.replace("/", "-"), **{name: "x"})
        with pytest.raises(UsageError, match=name.split("/")[-1].replace(".", r"\.")):
            load_harbor_task(folder)
    folder = write("latin1")
    (folder / "instruction.md").write_bytes(b"caf\xe9")
    with pytest.raises(CorruptDataError, match="is not UTF-8"):
        load_harbor_task(folder)
