"""As root, code runs as users of its own; the folder of its sandbox must be one that they may enter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentgym.errors import SandboxUnavailableError
from agentgym.sandboxes.process import ProcessSandbox
from agentgym.sandboxes.run_folder import state_folder

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="without root, code runs as the user itself")


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "TMPDIR"])
def test_a_private_folder_is_passed_over(variable: str, closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login as root over systemd sets XDG_RUNTIME_DIR=/run/user/0, which nobody else may enter."""
    for name in ("AGENTGYM_STATE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(closed))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert not state_folder().is_relative_to(closed)
    with ProcessSandbox() as sandbox:
        sandbox.write("notes.txt", "mine")
        assert sandbox.exec("cat notes.txt").stdout == "mine"


def test_a_private_folder_that_was_asked_for_is_refused(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_STATE", str(closed / "state"))
    with pytest.raises(SandboxUnavailableError, match=r"cannot enter .*/closed/state: set AGENTGYM_STATE to a folder"):
        ProcessSandbox()
