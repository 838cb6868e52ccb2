"""Export of an evaluation as a log of inspect_ai, for ``inspect view`` and its Python API (extra ``inspect``)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentgym.cache import whole_file
from agentgym.errors import MissingExtraError
from agentgym.evals.runner import EvalSummary
from agentgym.interop.chat import conversation_of
from agentgym.interop.recorded import Recorded
from agentgym.types import Trajectory

try:
    from inspect_ai._util.error import EvalError
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalSample,
        EvalScore,
        EvalSpec,
        EvalStats,
        write_eval_log,
    )
    from inspect_ai.model import ChatMessage, ModelOutput, ModelUsage
    from inspect_ai.scorer import Score
    from pydantic import TypeAdapter
except ImportError as error:
    raise MissingExtraError("a log of inspect_ai", "inspect") from error


def write_inspect_log(recorded: Recorded, path: Path) -> int:
    """Write an evaluation to ``.eval`` or ``.json`` and return its number of episodes.

    Each episode is a sample; repeated episodes of a task are its epochs. Scores are ``success``, ``reward``, and each
    named part of the reward. A failed episode is a sample with an error and without a score.
    """
    samples = _samples(recorded.trajectories)
    summary = recorded.run.summaries.get(recorded.label)
    log = EvalLog(
        status="success",
        eval=_spec(recorded, summary, samples),
        results=_results(samples),
        stats=_stats(recorded, samples),
        samples=samples,
    )
    with whole_file(path) as partial:
        write_eval_log(log, str(partial))
    return len(samples)


def _spec(recorded: Recorded, summary: EvalSummary | None, samples: Sequence[EvalSample]) -> EvalSpec:
    played = recorded.trajectories
    ids = list(dict.fromkeys(sample.id for sample in samples))
    name = summary.suite_or_env if summary is not None else played[0].env_id if played else recorded.run.name
    return EvalSpec(
        created=_begun(recorded).isoformat(),
        task=name,
        dataset=EvalDataset(name=name, samples=len(ids), sample_ids=ids),
        model=f"agentgym/{summary.policy}" if summary is not None else "agentgym/unknown",
        config=EvalConfig(epochs=max((sample.epoch for sample in samples), default=1)),
        metadata={"run": recorded.run.name, "evaluation": recorded.label},
    )


def _begun(recorded: Recorded) -> datetime:
    """Return the time of the last write to the evaluation's folder, which is about the end of the evaluation."""
    return datetime.fromtimestamp(recorded.folder.stat().st_mtime, UTC)


def _stats(recorded: Recorded, samples: Sequence[EvalSample]) -> EvalStats:
    """Return the total seconds of all episodes, as if they had run one after the other."""
    seconds = sum(sample.total_time or 0.0 for sample in samples)
    begun = _begun(recorded)
    return EvalStats(started_at=begun.isoformat(), completed_at=(begun + timedelta(seconds=seconds)).isoformat())


def _samples(trajectories: Sequence[Trajectory]) -> list[EvalSample]:
    epochs: Counter[str] = Counter()
    samples = []
    for one in trajectories:
        epochs[one.task.id] += 1
        samples.append(_sample(one, epochs[one.task.id]))
    return samples


def _sample(one: Trajectory, epoch: int) -> EvalSample:
    rows = conversation_of(one)
    messages = chat_messages_of(rows)
    said = [row for row in rows if row["role"] == "assistant"]
    read, wrote = sum(len(turn.prompt_ids) for turn in one.turns), sum(turn.num_sampled_tokens for turn in one.turns)
    usage = ModelUsage(input_tokens=read, output_tokens=wrote, total_tokens=read + wrote)
    return EvalSample(
        id=one.task.id,
        epoch=epoch,
        input=messages[: len(one.observation)],
        target=list(one.task.answers) or "",
        messages=messages,
        output=ModelOutput.from_content("agentgym", str(said[-1]["content"]) if said else ""),
        scores=_scores(one) if one.status.is_evidence else None,
        model_usage={"agentgym": usage},
        metadata={"seed": one.seed, "status": one.status.value, "task_type": one.task_type, "env": one.env_id},
        total_time=sum(turn.latency.generate_s + turn.latency.env_s for turn in one.turns),
        error=None if one.status.is_evidence else _error(one),
    )


def _error(one: Trajectory) -> EvalError:
    said = f"{one.status.value}: {one.error or 'the infrastructure failed'}"
    return EvalError(message=said, traceback=said, traceback_ansi=said)


def _scores(one: Trajectory) -> dict[str, Score]:
    parts: Counter[str] = Counter()
    for turn in one.turns:
        for part in turn.reward_parts:
            parts[part.name] += part.value  # type: ignore[assignment]
    by_part = {f"reward_{name}": Score(value=value) for name, value in sorted(parts.items())}
    return {"success": Score(value=float(bool(one.success))), "reward": Score(value=one.reward or 0.0), **by_part}


def _results(samples: Sequence[EvalSample]) -> EvalResults:
    scored = [sample.scores for sample in samples if sample.scores is not None]
    scores: list[EvalScore] = []
    for name in ("success", "reward"):
        values = [float(one[name].value) for one in scored]
        mean = {"mean": EvalMetric(name="mean", value=sum(values) / len(values))} if values else {}
        counts = {"scored_samples": len(values), "unscored_samples": len(samples) - len(values)}
        scores.append(EvalScore(name=name, scorer=name, metrics=mean, **counts))
    return EvalResults(total_samples=len(samples), completed_samples=len(scored), scores=scores)


def chat_messages_of(rows: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    """Convert messages in OpenAI's format to inspect's."""
    return TypeAdapter(list[ChatMessage]).validate_python([_for_inspect(row) for row in rows])


def _for_inspect(row: dict[str, Any]) -> dict[str, Any]:
    """Return a message for inspect's models: arguments as an object, thinking and images as content."""
    made = {key: value for key, value in row.items() if key in ("role", "content", "tool_call_id")}
    if isinstance(made["content"], list):
        made["content"] = [
            {"type": "image", "image": part["image_url"]["url"]} if part["type"] == "image_url" else part
            for part in made["content"]
        ]
    if thinking := row.get("reasoning_content"):
        text = [{"type": "text", "text": made["content"]}] if isinstance(made["content"], str) else made["content"]
        made["content"] = [{"type": "reasoning", "reasoning": thinking}, *text]
    if row["role"] == "tool":
        made["function"] = row.get("name")
    if calls := row.get("tool_calls"):
        made["tool_calls"] = [
            {
                "id": call["id"],
                "function": call["function"]["name"],
                "arguments": json.loads(call["function"]["arguments"]),
                "type": "function",
            }
            for call in calls
        ]
    return made
