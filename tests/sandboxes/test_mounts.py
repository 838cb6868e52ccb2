"""Folders of the host in sandboxes, and images with more packages."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agentgym.errors import SandboxError, SandboxImageError, UsageError
from agentgym.sandbox import Mount
from agentgym.sandboxes import namespaces
from agentgym.sandboxes.images import build
from agentgym.sandboxes.images.build import build_image
from agentgym.sandboxes.ladder import open_sandbox
from agentgym.sandboxes.run_folder import shared_folder

CONNECT = "import socket,sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print('connected')"
BACKENDS = [
    pytest.param("namespaces", marks=pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())),
    pytest.param("docker", marks=pytest.mark.docker),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mount_is_read_only_and_its_sockets_can_be_connected_to(backend: str, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("hello\n", encoding="utf-8")
    tmp_path.chmod(0o755)
    path = shared_folder() / "test-mounts.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o666)
        listening.listen()
        mounts = [
            Mount(host=str(tmp_path), inside="/opt/words"),
            Mount(host=str(path.parent), inside="/opt/place/sockets"),
        ]
        try:
            with open_sandbox(backend, mounts=mounts) as sandbox:  # type: ignore[arg-type]
                assert sandbox.exec("cat /opt/words/words.txt").stdout == "hello\n"
                assert not sandbox.exec("echo more >> /opt/words/words.txt").ok
                assert not sandbox.exec("touch /opt/words/new").ok
                said = sandbox.exec(["python3", "-c", CONNECT, f"/opt/place/sockets/{path.name}"])
                assert said.stdout == "connected\n", said.stderr
        finally:
            path.unlink()
    assert [one.name for one in tmp_path.iterdir()] == ["words.txt"]


@pytest.mark.docker
def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    with pytest.raises(SandboxError, match="none"):
        open_sandbox("docker", mounts=[Mount(host=str(missing), inside="/opt/none")])
    assert not missing.exists()


def test_what_is_no_name_of_a_package_goes_into_no_image() -> None:
    with pytest.raises(UsageError, match="is not the name of a Debian package"):
        build_image("agentgym-test:1", ["curl", "--customize-hook=true"])
    for name in ("My Tools", "tools:", "Tools:1", ":1"):
        with pytest.raises(UsageError, match=f"'{name}' is not the name of an image"):
            build_image(name)


def test_an_image_that_cannot_be_built_names_the_package_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("I: installing", "E: Unable to locate package nosuch", "E: setup failed: E: apt-get " + "-o X=y " * 100)
    fake = tmp_path / "mmdebstrap"
    fake.write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in lines) + "exit 25\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(build, "engine", object)
    with pytest.raises(SandboxImageError) as failed:
        build_image("agentgym-test:1", ["nosuch"])
    assert str(failed.value) == "mmdebstrap failed with 25: E: Unable to locate package nosuch"
