"""Build of the base image without a registry: a Debian root file system from packages, imported as one layer."""

from __future__ import annotations

import importlib.resources
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentgym.errors import SandboxDiskFullError, SandboxImageError, SandboxUnavailableError, UsageError
from agentgym.sandboxes.docker_engine import docker_errors, engine
from agentgym.sandboxes.images import DEFAULT_IMAGE

_SUITE = "bookworm"
_USERS = (
    'echo agent:x:1000: >> "$1/etc/group"',
    'echo agent:x:1000:1000::/tmp:/bin/sh >> "$1/etc/passwd"',
    'echo grader:x:1001:1000::/tmp:/bin/sh >> "$1/etc/passwd"',
    'mkdir "$1/workspace"',
)
_IMAGE = re.compile(r"([\w.-]+(:\d+)?/)?[a-z0-9][a-z0-9._/-]*(:\w[\w.-]*)?")  # HOST:PORT/NAME:TAG
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_SPARED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def packages() -> tuple[str, ...]:
    """Return the Debian packages of the base image, in addition to the essential ones."""
    text = (importlib.resources.files("agentgym.sandboxes.images") / "packages.txt").read_text(encoding="utf-8")
    return tuple(text.split())


def build_image(name: str = DEFAULT_IMAGE, extra: Sequence[str] = ()) -> str:
    """Build the base image with mmdebstrap and import it into the Docker engine.

    It takes about a minute and 250 MB on disk. It needs the Debian mirror of this host's apt, but no registry.

    Args:
        name: name of the image.
        extra: additional Debian packages.

    Returns:
        Id of the image.

    Raises:
        UsageError: ``name`` is not an image's name, or one in ``extra`` is not a package's.
        SandboxUnavailableError: mmdebstrap or a Docker engine is missing.
        SandboxImageError: mmdebstrap failed; the message contains its first error.
        SandboxDiskFullError: the disk is full.
    """
    if not _IMAGE.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of an image; use lower-case letters, as in my-tools:1")
    if wrong := [one for one in extra if not _PACKAGE.fullmatch(one)]:
        raise UsageError(f"{wrong[0]!r} is not the name of a Debian package")
    if shutil.which("mmdebstrap") is None:
        raise SandboxUnavailableError("mmdebstrap is not installed: apt-get install mmdebstrap")
    client = engine()
    with tempfile.TemporaryDirectory(prefix="agentgym-image-") as folder:
        tar = Path(folder, "root.tar")
        _make_root(tar, (*packages(), *extra))
        repository, tag = name.rsplit(":", 1) if ":" in name.rpartition("/")[2] else (name, "latest")
        with docker_errors(f"import {name}", name):
            client.api.import_image_from_file(str(tar), repository=repository, tag=tag)
    with docker_errors(f"look at {name}", name):
        return str(client.images.get(name).id)


def _make_root(tar: Path, included: Sequence[str]) -> None:
    command = ["mmdebstrap", "--variant=essential", f"--include={','.join(included)}"]
    command += [f"--customize-hook={line}" for line in _USERS]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _SPARED]
    done = subprocess.run([*command, _SUITE, str(tar)], capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        if "No space left" in done.stderr:
            raise SandboxDiskFullError(f"no space left in {tar.parent} for the image; set TMPDIR to another disk")
        # apt's own error comes first; those of mmdebstrap that follow say only that apt failed
        words = next((line for line in done.stderr.splitlines() if line.startswith("E: ")), done.stderr.strip())
        raise SandboxImageError(f"mmdebstrap failed with {done.returncode}: {words[-500:]}")


def _environment() -> dict[str, str]:
    path = os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{path}:/usr/sbin:/sbin"}  # mmdebstrap calls programs that are only in root's PATH
