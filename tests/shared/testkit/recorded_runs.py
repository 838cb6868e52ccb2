"""Recorded runs generated from a seed: groups, records with the credit of a trainer, and a run's folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.credited import turn_credits
from agentgym.credit.recredit import RecordedBatch
from agentgym.credit.state import CreditState
from agentgym.rollout.record import GroupRecord, record_path, write_records
from agentgym.types import (
    Completion,
    FinishReason,
    Message,
    RewardPart,
    RewardRole,
    Segment,
    Status,
    Task,
    ToolCall,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


def turn(index: int, *, state: str, outcome: float = 0.0, process: float = 0.0, is_valid: bool = True) -> Turn:
    """Return a turn whose reward has two parts."""
    name = f"go: {state} {index % 3}"
    parts = [RewardPart("solved", outcome), RewardPart("steps", process, RewardRole.PROCESS)]
    return Turn(
        index=index,
        prompt_ids=(1, 2),
        completion=Completion(
            token_ids=(3,) * (index + 1),
            logprobs=(-0.5,) * (index + 1),
            policy_versions=(0,) * (index + 1),
            finish_reason=FinishReason.STOP,
        ),
        action=Message("assistant", name, (ToolCall("go", {"to": name}),)),
        replies=(Message("user", f"after {name}"),),
        reward_parts=tuple(part for part in parts if part.value),
        state_key=state,
        is_valid=is_valid,
    )


def group(ordinal: int, rng: np.random.Generator, *, num_members: int = 4, can_win: bool = True) -> TrajectoryGroup:
    """Return a group whose members share a few states; without ``can_win`` all fail, with different process rewards."""
    task = Task(id=f"train-{ordinal % 5}", split="train", seed=ordinal % 5)
    members = []
    for member in range(num_members):
        num_turns = int(rng.integers(1, 6))
        won = can_win and bool(rng.random() < 0.5)
        turns = tuple(
            turn(
                at,
                state="start" if at == 0 else f"room {rng.integers(3)}",
                outcome=0.4 * float(won and at == num_turns - 1),  # so that returns stay below 1
                process=float(rng.integers(0, 3)) / 20,
                is_valid=bool(rng.random() < 0.8),
            )
            for at in range(num_turns)
        )
        members.append(
            Trajectory(
                task=task,
                env_id="Rooms-v0",
                status=Status.COMPLETED if won else Status.TRUNCATED_TURNS,
                segments=(Segment(turns),),
                seed=member,
                observation=(Message("user", "Go somewhere."),),
                success=won,
            )
        )
    return TrajectoryGroup(ordinal=ordinal, task=task, trajectories=tuple(members))


def lost(task: Task) -> Trajectory:
    """Return an episode whose infrastructure failed."""
    return Trajectory(task=task, env_id="Rooms-v0", status=Status.ENV_ERROR, segments=(), seed=9, error="it broke")


def recorded_batches(
    config: CreditConfig, *, num_steps: int = 4, num_groups: int = 3, seed: int = 0
) -> tuple[RecordedBatch, ...]:
    """Return steps as a trainer records them; their last group cannot succeed, and the first has a failed member."""
    rng, state = np.random.default_rng(seed), CreditState()
    batches = []
    for step in range(num_steps):
        groups = [group(step * num_groups + at, rng, can_win=at < num_groups - 1) for at in range(num_groups)]
        first = groups[0]
        groups[0] = TrajectoryGroup(
            ordinal=first.ordinal, task=first.task, trajectories=(*first.trajectories, lost(first.task))
        )
        result = credit_groups(groups, config, state=state)
        credit = turn_credits(groups, result)
        state = result.state
        batches.append(RecordedBatch(step=step, groups=tuple(groups), credit=credit, dropped=(None,) * num_groups))
    return tuple(batches)


def write_run(folder: Path, config: CreditConfig, *, num_steps: int = 4, seed: int = 0) -> tuple[RecordedBatch, ...]:
    """Write a run's folder: the parts of its configuration that concern credit, and its records."""
    batches = recorded_batches(config, num_steps=num_steps, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"recipe": "rooms", "credit": asdict(config)}))
    for batch in batches:
        records = [GroupRecord(group=of, credit=credit) for of, credit in zip(batch.groups, batch.credit, strict=True)]
        write_records(record_path(folder, batch.step), records)
    return batches
