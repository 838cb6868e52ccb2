"""What of the host the rung ``namespaces`` shows: programs and the standard library, and no installed package."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym.sandbox import Mount
from agentgym.sandboxes import namespaces
from agentgym.sandboxes.namespaces import NamespaceSandbox

pytestmark = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())


@pytest.fixture(scope="module")
def sandbox() -> Iterator[NamespaceSandbox]:
    opened = NamespaceSandbox()
    yield opened
    opened.close()


def test_no_installed_package_is_seen(sandbox: NamespaceSandbox) -> None:
    folders = [folder for folder in namespaces._installed_packages() if any(Path(folder).iterdir())]
    assert folders, "there is nothing on this host that this test could miss"
    for folder in folders:
        assert sandbox.exec(["ls", "-A", folder]).stdout == ""
    seen = "find / -xdev -iname '*agentgym*' -not -path '/proc/*' 2>/dev/null; find /usr /root -iname '*agentgym*'"
    assert sandbox.exec(seen).stdout == ""
    tries = "import importlib.util as u; print([n for n in ('agentgym', 'numpy', 'pytest', 'pip') if u.find_spec(n)])"
    for python in ("python3", sys.executable, "/usr/bin/python3"):
        found = sandbox.exec([python, "-c", tries])
        assert found.stdout == "[]\n" or not found.ok
    assert sandbox.run_python(tries).stdout == "[]\n"


def test_the_user_has_a_name(sandbox: NamespaceSandbox) -> None:
    assert sandbox.exec("whoami").stdout == "agent\n"


def test_the_standard_library_works(sandbox: NamespaceSandbox) -> None:
    code = "import ssl, sqlite3, ctypes, lzma, zoneinfo; print(6 * 7)"
    assert sandbox.run_python(code).stdout == "42\n"
    assert sandbox.exec(["python3", "-c", code]).stdout == "42\n"


def test_packages_that_are_asked_for_are_seen() -> None:
    folder = next(one for one in namespaces._installed_packages() if any(Path(one).iterdir()))
    with NamespaceSandbox(mounts=[Mount(host=folder, inside=folder)]) as sandbox:
        assert sandbox.exec(["ls", folder]).stdout != ""
        assert not sandbox.exec(["touch", f"{folder}/new"]).ok
