"""Recorded episodes as rows of a data set, one conversation per row, with the columns that TRL and others use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgym.api.trust import require_trust
from agentgym.cache import whole_file
from agentgym.env.env import Env
from agentgym.errors import MissingExtraError, UsageError
from agentgym.evals.suite_runner import SUITE_FILE, load_saved
from agentgym.interop.chat import conversation_of
from agentgym.interop.recorded import Recorded
from agentgym.registry import id_of, make
from agentgym.report.run_folder import RunFolder
from agentgym.rollout.run_kind import saved_envs
from agentgym.types import ToolSpec, Trajectory


def write_conversations(recorded: Recorded, path: Path) -> int:
    """Write episodes to ``.jsonl`` or ``.parquet`` and return their number.

    Columns: ``messages`` and ``tools`` (JSON text in Parquet, whose columns have one type), ``env_id``, ``task_id``,
    ``seed``, ``status``, ``success``, ``reward``, ``reward_parts``. Failed episodes are left out, since they have no
    reward.

    Raises:
        UsageError: an environment, which lists the tools, cannot be made.
        MissingExtraError: Parquet needs the extra ``parquet``.
    """
    valid = [one for one in recorded.trajectories if one.status.is_evidence]
    rows = list(_rows(valid, _tools(recorded.run, {one.env_id for one in valid})))
    with whole_file(path) as partial:
        if path.suffix == ".parquet":
            _write_parquet(rows, partial)
        else:
            partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def _rows(trajectories: Sequence[Trajectory], tools: dict[str, tuple[ToolSpec, ...]]) -> Iterator[dict[str, Any]]:
    for one in trajectories:
        yield {
            "messages": conversation_of(one, tools[one.env_id]),
            "tools": [tool.as_function() for tool in tools[one.env_id]],
            "env_id": one.env_id,
            "task_id": one.task.id,
            "seed": one.seed,
            "status": one.status.value,
            "success": one.success,
            "reward": one.reward,
            "reward_parts": [
                {"turn": place, "name": part.name, "value": part.value, "role": part.role.value}
                for place, turn in enumerate(one.turns)
                for part in turn.reward_parts
            ],
        }


def _tools(run: RunFolder, env_ids: set[str]) -> dict[str, tuple[ToolSpec, ...]]:
    """Return the tools of environments from new instances, since records do not hold them."""
    require_trust(run.path)
    found: dict[str, tuple[ToolSpec, ...]] = {}
    for env in _envs(run, env_ids):
        found[env.env_id] = env.tools
        env.close()
    for env_id in sorted(env_ids - set(found)):
        env = make(env_id)
        found[env_id] = env.tools
        env.close()
    return found


def _envs(run: RunFolder, env_ids: set[str]) -> Iterator[Env]:
    """Yield new environments of a run; of suites one for each part, of a mixture those that episodes are of."""
    for file in sorted(run.path.glob(f"**/{SUITE_FILE}")):
        for part in load_saved(file.parent).suite.parts:
            yield part.make_env()
    for reference, kwargs in _named(run.config):
        if run.kind == "evaluation" or id_of(reference, kwargs) in env_ids:
            yield make(reference, **kwargs)


def _named(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    evaluated = config.get("eval") or {}
    if "env" in evaluated:
        yield evaluated["env"], dict(evaluated.get("kwargs") or {})
    for env in saved_envs(config):
        if env["id"]:
            yield env["id"], dict(env["kwargs"])


def _write_parquet(rows: Sequence[dict[str, Any]], path: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("writing Parquet", "parquet") from error
    if not rows:
        raise UsageError("there is no episode to write")
    # a column has one type, while schemas of tools differ and contents are text or parts; hence JSON text
    flat = [
        {**row, "tools": json.dumps(row["tools"]), "messages": [_plain(one) for one in row["messages"]]} for row in rows
    ]
    parquet.write_table(pyarrow.Table.from_pylist(flat), path)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part["type"] == "text")
    return {**message, "content": content}
