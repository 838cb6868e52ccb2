"""Harbor's ``task.toml``: the table of its fields, and what happens to each.

The models below are the table. A field that they lack is refused with file and line, and so is a value of
:data:`REFUSED`. Field names and rules are those of the package harbor 0.26 (``models/task/config.py`` and
``utils/env.py``, Apache-2.0).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentgym.errors import CorruptDataError, MissingDataError, UsageError

_TEMPLATE: Final = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KMG])(?:i?B)?", re.IGNORECASE)
_MB_OF: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}


def _megabytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("a size is a number with K, M or G")
    return int(float(found[1]) * _MB_OF[found[2].upper()])


def _plain_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if any("/" in name for name in names):
        raise ValueError("expected names without /")
    return names


Variables = dict[str, str]
Size = Annotated[int, BeforeValidator(_megabytes)]
Network = Literal["no-network", "public", "allowlist"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Author(_Table):
    name: str
    email: str | None = None


class _Package(_Table):
    """``[task]``: the name is read, the rest has no effect."""

    name: str = ""
    version: str | None = None
    description: str = ""
    authors: tuple[_Author, ...] = ()
    keywords: tuple[str, ...] = ()


class _Metadata(BaseModel):
    """``[metadata]``: free; ``agentgym_left_out`` is our own."""

    agentgym_left_out: Annotated[tuple[str, ...], AfterValidator(_plain_names)] = ()


class _Environment(_Table):
    """``[environment]``: image, folder, variables and memory are read.

    Build time and the sizes of disk and processors have no effect: sandboxes have limits of their own.
    """

    docker_image: str | None = None
    workdir: str | None = None
    env: Variables = {}
    memory_mb: int | None = None
    memory: Size | None = None
    build_timeout_sec: float = 600.0
    cpus: float | None = None
    storage_mb: int | None = None
    storage: Size | None = None
    os: Annotated[Literal["linux", "windows"], BeforeValidator(lambda name: str(name).lower())] = "linux"
    network_mode: Network = "public"
    allow_internet: bool | None = None
    allowed_hosts: tuple[str, ...] | None = None
    gpus: int | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: tuple[dict[str, Any], ...] = ()
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None


class _Verifier(_Table):
    timeout_sec: Annotated[float, Field(gt=0)] = 600.0
    env: Variables = {}
    user: str | int | None = None
    network_mode: Network | None = None
    allowed_hosts: tuple[str, ...] | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: tuple[dict[str, Any], ...] = ()


class _Agent(_Table):
    """``[agent]``: the time-out has no effect; ``max_turns`` and ``tool_timeout_s`` limit an episode."""

    timeout_sec: float | None = None
    user: str | int | None = None
    network_mode: Network | None = None
    allowed_hosts: tuple[str, ...] | None = None


class _Solution(_Table):
    env: Variables = {}


class HarborConfig(_Table):
    """The content of a ``task.toml``. ``source`` and ``artifacts`` have no effect."""

    schema_version: str = "1.4"
    version: str | None = None
    source: str | None = None
    artifacts: tuple[str | dict[str, Any], ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    multi_step_reward_strategy: str | None = None
    task: _Package = _Package()
    metadata: _Metadata = _Metadata()
    environment: _Environment = _Environment()
    verifier: _Verifier = _Verifier()
    agent: _Agent = _Agent()
    solution: _Solution = _Solution()

    @property
    def memory_mb(self) -> int | None:
        """Memory in MB, in either spelling."""
        return self.environment.memory if self.environment.memory_mb is None else self.environment.memory_mb


REFUSED: Final[Mapping[str, str]] = {
    "steps": "steps",
    "multi_step_reward_strategy": "steps",
    "environment.gpus": "GPUs",
    "environment.tpu": "a TPU",
    "environment.mcp_servers": "MCP servers",
    "environment.skills_dir": "skills of an agent",
    "environment.healthcheck": "a healthcheck of running services",
    "environment.os": "another system than Linux",
    "environment.allowed_hosts": "a list of allowed hosts",
    "environment.network_mode": "a list of allowed hosts",
    "verifier.user": "users by name",
    "verifier.allowed_hosts": "a list of allowed hosts",
    "verifier.network_mode": "a list of allowed hosts",
    "verifier.environment_mode": "another environment for the verifier",
    "verifier.environment": "another environment for the verifier",
    "verifier.collect": "commands that collect artifacts",
    "agent.user": "users by name",
    "agent.network_mode": "a list of allowed hosts",
    "agent.allowed_hosts": "a list of allowed hosts",
}
"""Fields that sandboxes cannot satisfy, and what they ask for. They are refused unless empty or as sandboxes are."""

_AS_HERE: Final = (None, 0, (), "", "linux", "shared", "public", "no-network")


def read_config(file: Path) -> HarborConfig:
    """Read a ``task.toml``.

    Raises:
        CorruptDataError: it is not TOML, or a field is unknown or has a wrong value; the error names the line.
        UsageError: it asks for something that sandboxes do not have.
    """
    try:
        text = file.read_text(encoding="utf-8")
        config = HarborConfig.model_validate(tomllib.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        place = [str(part) for part in first["loc"]]
        reason = "is no field that is read" if first["type"] == "extra_forbidden" else first["msg"]
        raise CorruptDataError(f"{file}, {_line_of(text, place)}{'.'.join(place)}: {reason}") from None
    except (ValueError, OSError) as error:
        raise CorruptDataError(f"{file} cannot be read: {error}") from error
    for name, what in REFUSED.items():
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        if value not in _AS_HERE:
            line = _line_of(text, name.split("."))
            raise UsageError(f"{file}, {line}{name}: the task needs {what}, which sandboxes here do not have")
    return config


def host_values(variables: Mapping[str, str], place: str) -> dict[str, str]:
    """Return variables with ``${NAME}`` and ``${NAME:-default}`` replaced from this machine's environment.

    As in Harbor, a value is a template as a whole or not at all.

    Raises:
        MissingDataError: a variable is not set on this machine and has no default.
    """
    found = dict(variables)
    for name, value in variables.items():
        template = _TEMPLATE.fullmatch(value)
        if template is not None:
            replaced = os.environ.get(template[1], template[2])
            if replaced is None:
                raise MissingDataError(
                    f"{place}: {name} is {value}, and {template[1]} is not set on this machine; export it"
                )
            found[name] = replaced
    return found


def _line_of(text: str, place: list[str]) -> str:
    """Return ``line N: `` for a field by its path, or an empty text if its line is not found."""
    table: list[str] = []
    best = ""
    for number, line in enumerate(text.split("\n"), 1):
        if header := re.match(r"\s*\[{1,2}\s*([\w.\"'-]+)\s*\]{1,2}", line):
            table = [part.strip("\"'") for part in header[1].split(".")]
            here = table
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            here = [*table, *(part.strip("\"'") for part in key[1].split("."))]
        else:
            continue
        if here == place[: len(here)] and (not best or here == place):
            best = f"line {number}: "
    return best
