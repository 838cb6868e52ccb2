"""Recorded episodes as demonstrations: the choice of episodes, and their conversion for another tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentgym.env.env import Env
from agentgym.env.match_env import MatchEnv
from agentgym.errors import UsageError
from agentgym.evals.episodes import read_groups
from agentgym.render.families import FORMATS
from agentgym.rollout.record import read_records, record_path, recorded_steps
from agentgym.rollout.roles import part_name
from agentgym.trainers.config.sft import Keep
from agentgym.trainers.sft.conversation import AssistantExchange, Conversation
from agentgym.types import MalformedCall, Message, ToolSpec, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class RecordedSource:
    """All episodes of one source, failed ones included."""

    name: str
    trajectories: tuple[Trajectory, ...]


def read_run(path: str) -> RecordedSource:
    """Read the rollouts and evaluations of a training run's folder, or the episodes of an evaluation's folder.

    Raises:
        UsageError: there is no such folder, or it holds no recorded episodes.
        CorruptDataError: a record cannot be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"sft.runs: there is no folder {path}; name the folder of a training run or an evaluation")
    groups = [record.group for step in recorded_steps(folder) for record in read_records(record_path(folder, step))]
    for evaluation in (folder, *sorted((folder / "eval").glob("*"))):
        groups += read_groups(evaluation)
    if not groups:
        raise UsageError(
            f"sft.runs: {path} holds no recorded episodes (rollouts/step-*.jsonl.gz, eval/*/episodes.jsonl.gz or "
            "episodes.jsonl.gz); name the folder of a training run or an evaluation"
        )
    return RecordedSource(
        f"sft.runs: {path}", tuple(trajectory for group in groups for trajectory in group.trajectories)
    )


def chosen(trajectories: Iterable[Trajectory], keep: Keep) -> list[Trajectory]:
    """Return the valid episodes that ``keep`` selects, in order and without duplicates."""
    played = (trajectory for trajectory in trajectories if trajectory.replayed_step is None)
    valid = [trajectory for trajectory in played if trajectory.status.is_evidence and trajectory.turns]
    if keep == "all":
        return valid
    if keep == "success":
        return [trajectory for trajectory in valid if trajectory.success]
    best: dict[tuple[str, str, int], Trajectory] = {}
    for trajectory in valid:
        key = (trajectory.env_id, trajectory.task.content_hash, trajectory.player)
        if key not in best or _return(trajectory) > _return(best[key]):
            best[key] = trajectory
    return list(best.values())


def of_policy(recorded: Trajectory, env: Env, others: Collection[str]) -> Trajectory | None:
    """Return a recorded episode without sub-agents that other models play or played; None for another model's player.

    A sub-agent's record cannot be rendered again, and another model may have had a tokenizer of its own.

    Args:
        others: the parts of the environment that roles play in the run that learns.
    """
    if isinstance(env, MatchEnv) and part_name(env.players[recorded.player]) in others:
        return None
    own = tuple(
        segment
        for segment in recorded.segments
        if not segment.agent or (not segment.role and part_name(segment.agent) not in others)
    )
    return replace(recorded, segments=own)


def as_conversation(trajectory: Trajectory, tools: tuple[ToolSpec, ...]) -> Conversation | None:
    """Return an episode as a conversation, or None if a call is malformed and cannot be written in another format.

    Summaries are left out. So are sub-agents, because a record does not contain their instructions.
    """
    turns = spoken_turns(trajectory)
    if any(isinstance(call, MalformedCall) for turn in turns for call in turn.action.calls):
        return None
    exchanges = tuple(AssistantExchange(calls_apart(turn.action, tools), turn.replies, turn.played) for turn in turns)
    return Conversation(f"task {trajectory.task.id}", tools, trajectory.observation, exchanges)


def spoken_turns(trajectory: Trajectory) -> list[Turn]:
    """Return the main agent's turns without summaries."""
    return [
        turn for segment in trajectory.segments if not segment.agent for turn in segment.turns if turn.kind != "summary"
    ]


def calls_apart(action: Message, tools: Sequence[ToolSpec]) -> Message:
    """Return an action whose text excludes its calls."""
    if action.calls and FORMATS["compact"].parse(action.text, tools).calls == action.calls:
        return replace(action, content="", answer="")  # in this format the text consists of the calls
    return action


def _return(trajectory: Trajectory) -> float:
    value = trajectory.reward
    assert value is not None, "a valid episode has a return"
    return value
