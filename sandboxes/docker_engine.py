"""The connection to a Docker engine, and conversion of its failures to errors that say what to do."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentgym.errors import (
    AgentGymError,
    SandboxDiskFullError,
    SandboxError,
    SandboxImageError,
    SandboxUnavailableError,
    error_text,
    require_extra,
)

if TYPE_CHECKING:
    from docker import DockerClient

_TIMEOUT_S = 60
_START = "start it with `systemctl start docker` or `dockerd &`, or set DOCKER_HOST"
_NO_SPACE = "no space left on device"


def engine() -> DockerClient:
    """Return the connection, which each process makes once.

    Raises:
        MissingExtraError: the package ``docker`` is not installed.
        SandboxUnavailableError: no engine answers.
    """
    return _engine_of(os.getpid(), os.environ.get("DOCKER_HOST", ""))


@functools.lru_cache(maxsize=4)
def _engine_of(_pid: int, _host: str) -> DockerClient:
    require_extra("the docker sandbox", "docker", "docker")
    import docker

    with docker_errors("connect"):
        return docker.from_env(timeout=_TIMEOUT_S)


def engine_facts() -> Mapping[str, object]:
    """Return the engine's facts about itself (``docker info``)."""
    client = engine()
    with docker_errors("docker info"):
        facts: Mapping[str, Any] = client.info()
    return facts


@contextmanager
def docker_errors(what: str, image: str = "") -> Iterator[None]:
    """Convert exceptions in the ``with`` block to errors of :mod:`agentgym.errors` that say what to do."""
    import docker.errors
    import requests

    try:
        yield
    except AgentGymError:
        raise
    except docker.errors.ImageNotFound:
        hint = "`agentgym sandbox build` makes the one of agentgym; `docker pull` gets others"
        raise SandboxImageError(f"there is no image {image!r} here; {hint}") from None
    except docker.errors.APIError as error:
        raise _of_answer(what, image, error) from None
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        if _NO_SPACE in str(error).lower():
            raise _disk_full(what) from None
        host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        raise SandboxUnavailableError(
            f"{what}: no Docker engine answers at {host} ({_root_of(error)}); {_how_to_start()}"
        ) from None


def _how_to_start() -> str:
    """Return advice for a machine without an answering engine: an engine that is not installed cannot be started."""
    if shutil.which("dockerd") or shutil.which("docker"):
        return _START
    return "install one (apt-get install docker.io iptables), or set DOCKER_HOST"


def _root_of(error: BaseException) -> str:
    """Return the operating system's message inside a library's exception, such as "No such file or directory"."""
    words, inner = error_text(error), error.__context__
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            words = inner.strerror
        inner = inner.__context__
    return words


def _of_answer(what: str, image: str, error: Any) -> SandboxError:
    words = str(error.explanation or error)
    if _NO_SPACE in words.lower():
        return _disk_full(what)
    if "executable file not found" in words or "no such file or directory" in words:
        return SandboxImageError(f"image {image!r} has no python3, which the worker inside needs ({words[-200:]})")
    return SandboxError(f"{what}: Docker refuses: {words}")


def _disk_full(what: str) -> SandboxDiskFullError:
    return SandboxDiskFullError(f"{what}: no space left where Docker keeps its data; `docker system prune` frees some")


def is_not_found(error: Exception) -> bool:
    """Return True if the object to remove is missing or already being removed."""
    import docker.errors

    return isinstance(error, docker.errors.NotFound) or (
        isinstance(error, docker.errors.APIError) and error.status_code == 409 and "in progress" in str(error)
    )


def why_not(image: str) -> str:
    """Return an empty text if an engine answers and has the image, else the reason and what to do."""
    try:
        client = engine()
        with docker_errors("look for the image", image):
            client.images.get(image)
    except AgentGymError as error:
        return str(error)
    return ""


def image_variables(image: str) -> dict[str, str]:
    """Return the environment variables that an image sets.

    Raises:
        SandboxError: the engine does not answer, or there is no such image.
    """
    with docker_errors(f"read the variables of {image}", image):
        config = engine().images.get(image).attrs["Config"] or {}
    return dict(line.split("=", 1) for line in config.get("Env") or () if "=" in line)
