"""Loading of environments of verifiers by id or file, with the harness and the runtime of their agents."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uv
import verifiers.v1 as vf

from agentgym.errors import MissingDataError, UsageError


def load(taskset: str, env: str, config: Mapping[str, Any], seat: Mapping[str, Any]) -> vf.Env:
    """Return an environment of verifiers. ``seat`` gives settings that neither its agents nor ``config`` set.

    Raises:
        UsageError: there is no such taskset or environment, or verifiers rejects the settings.
    """
    try:
        given = {**config, "id": env, "taskset": {**config.get("taskset", {}), "id": _importable(taskset)}}
        for name, spec in vf.env_config_type(given["taskset"]["id"], env).model_fields.items():
            if isinstance(spec.default, vf.AgentConfig):
                declared = spec.default.model_dump(exclude_unset=True)
                given[name] = {**{key: seat[key] for key in seat if key not in declared}, **given.get(name, {})}
        made = vf.load_environment(vf.resolve_env_config(given))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"verifiers cannot load {taskset!r}: {' '.join(str(error).split()):.500}") from error
    for _, spec in made.config:
        if isinstance(spec, vf.AgentConfig) and isinstance(spec.runtime, vf.SubprocessConfig):
            harness = spec.harness or vf.default_agent_harness(made.config.taskset.id)
            if vf.load_harness(harness).EXECUTES_CODE:
                raise UsageError(f"the harness {harness.id!r} runs the model's code; give the agent a runtime: docker")
    return made


def path_with_uv() -> str:
    """Return a PATH that contains uv, which verifiers uses to start its programs."""
    return os.pathsep.join((os.path.dirname(uv.find_uv_bin()), os.environ.get("PATH", "")))


def _importable(taskset: str) -> str:
    """Return the import name of a taskset. A file's folder is added to the import path, also for child processes."""
    if not taskset.endswith(".py"):
        return taskset
    path = Path(taskset).resolve()
    if not path.is_file():
        raise MissingDataError(f"no file {taskset!r}")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (os.environ.get("PYTHONPATH"), folder) if part)
        importlib.invalidate_caches()
    return path.stem
