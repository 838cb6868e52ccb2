"""A made-up training run: hand-made episodes, numbers from a seeded generator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym.envs.gui.chromium import FLAGS, find_chromium
from agentgym.evals.episodes import EpisodeFiles, write_json
from agentgym.evals.runner import summarise
from agentgym.rollout.record import GroupRecord, append_json_line, record_path, write_records
from agentgym.rollout.token_scores import TurnScores, scores_path, write_scores
from agentgym.types import (
    Completion,
    FinishReason,
    Latency,
    MalformedCall,
    Message,
    RewardPart,
    RewardRole,
    Segment,
    Status,
    Task,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
    TurnCredit,
)

NUM_STEPS = 12


def turn(index: int, *, text: str = "take: mug 1", reply: str = "You pick up the mug 1.", won: bool = False) -> Turn:
    """One turn whose token ids are the bytes of its text."""
    ids = tuple(text.encode())
    return Turn(
        index=index,
        prompt_ids=tuple(b"Put a mug on the shelf." if index == 0 else b"> "),
        completion=Completion(
            token_ids=ids,
            logprobs=tuple(-0.01 if at % 7 else -3.0 for at in range(len(ids))),
            policy_versions=(3,) * len(ids),
            finish_reason=FinishReason.STOP,
        ),
        action=Message("assistant", text, (MalformedCall((0, 4), "expected a name", "tak!"),) if index == 1 else ()),
        replies=(Message("tool", reply, result=ToolResult(reply, "take", "0", "tool_error" if index == 1 else None)),),
        reward_parts=(RewardPart("step", 0.1, RewardRole.PROCESS), *((RewardPart("outcome", 1.0),) if won else ())),
        state_key=f"mug 1 on shelf {index}",
        is_valid=index != 1,
        latency=Latency(0.001, 0.02, 0.003, 0.004),
    )


def trajectory(task: Task, *, won: bool = True, num_turns: int = 3, seed: int = 1, **changes: Any) -> Trajectory:
    """An episode in two segments."""
    turns = tuple(turn(at, won=won and at == num_turns - 1) for at in range(num_turns))
    values: dict[str, Any] = {
        "status": Status.COMPLETED if won else Status.TRUNCATED_TURNS,
        "segments": (Segment(turns[:2]), Segment(turns[2:])) if num_turns > 2 else (Segment(turns),),
        "success": won,
    }
    return Trajectory(
        task=task,
        env_id="Mugs-v0",
        seed=seed,
        observation=(Message("user", "Put a mug on the shelf."),),
        **(values | changes),
    )


def record(
    ordinal: int, *, outcomes: tuple[bool, ...] = (True, False, False), dropped: str | None = None
) -> GroupRecord:
    """A group with one member per outcome, and credit for every turn."""
    task = Task(id=f"train-{ordinal}", split="train", seed=ordinal, data={"goal": "mug"})
    members = tuple(trajectory(task, won=won, seed=2**62 + at) for at, won in enumerate(outcomes))
    credit = tuple(
        tuple(
            TurnCredit(
                shaped_reward=0.0,
                return_to_go=float(won),
                advantage=(1.5 if won else -0.75) * (0.0 if dropped else 1.0),
                anchor_group=at,
                anchor_size=len(outcomes),
            )
            for at in range(3)
        )
        for won in outcomes
    )
    return GroupRecord(
        group=TrajectoryGroup(ordinal=ordinal, task=task, trajectories=members), credit=credit, dropped=dropped
    )


def scores_of(records: list[GroupRecord]) -> list[TurnScores]:
    """The trainer's scores of the trained turns, the first token of each left out."""
    return [
        TurnScores(
            ordinal=record.group.ordinal,
            member=member,
            turn=at,
            logprobs=(None, *(value - 0.002 for value in played.completion.logprobs[1:])),
            entropies=(None, *(0.3 * (n % 9) for n in range(1, len(played.completion.token_ids)))),
        )
        for record in records
        if record.dropped is None
        for member, trajectory in enumerate(record.group.trajectories)
        for at, played in enumerate(trajectory.turns)
    ]


def write_eval(folder: Path, *, num_won: int, num_episodes: int = 10, policy: str = "demo") -> None:
    """An evaluation in which the first ``num_won`` episodes succeed."""
    files = EpisodeFiles(folder, resume=False)
    for at in range(num_episodes):
        task = Task(id=f"test-{at}", split="test", seed=at)
        files.add(TrajectoryGroup(ordinal=at, task=task, trajectories=(trajectory(task, won=at < num_won),)))
    files.finish()
    summary = summarise(list(files.rows.values()), suite_or_env="Mugs-v0", policy=policy, run_dir=folder)
    write_json(folder / "summary.json", {name: getattr(summary, name) for name in summary.__slots__})


def write_metrics(folder: Path) -> None:
    """Rows of all phases that look like learning."""
    rng = np.random.default_rng(0)
    for step in range(1, 21):
        append_json_line(
            folder / "metrics.jsonl", {"phase": "sft", "step": step, "loss": 4 / step, "action_loss": 3 / step}
        )
    for step in range(1, NUM_STEPS + 1):
        success = float(np.clip(0.1 + 0.07 * step + rng.normal(0, 0.04), 0, 1))
        row = {
            "phase": "rl", "step": step, "success": success, "return": success, "num_turns": 14.0 - step / 2,
            "loss": float(rng.normal(0, 0.02)), "entropy": 0.5, "clip_fraction": 0.01, "logprob_gap_max": 1e-5,
            "anchor_share": 0.8, "anchor_size": 4.2, "zero_advantage_share": 0.3, "num_dropped_groups": 1.0,
            "tokens_per_s": 3800.0, "my_own_number": float(step), "status/completed": 40.0 + step,
            "status/truncated_turns": 24.0 - step, "status/env_error": 0.0, "time/rollout_s": 1.3, "time/train_s": 1.0,
        }  # fmt: skip
        append_json_line(folder / "metrics.jsonl", row)
    for step, success in ((0, 0.2), (NUM_STEPS, 0.8)):
        row = {"phase": "eval", "step": step, "success": success, "success_low": success - 0.1, "success_high": 0.9}
        append_json_line(folder / "metrics.jsonl", row)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer whose token ids are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def _byte_vocabulary() -> dict[str, int]:
    # Byte-level BPE writes printable bytes as themselves and the others as characters from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + at): b for at, b in enumerate(others)}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished training run of :data:`NUM_STEPS` steps."""
    folder = tmp_path / "mugs-001"
    folder.mkdir()
    config = {
        "eval": {"kwargs": {}},
        "recipe": "mugs", "seed": 7, "env": {"id": "Mugs-v0", "kwargs": {"num_mugs": 3}},
        "credit": {"estimator": "gigpo", "shapers": [{"kind": "g_ra"}]},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    write_metrics(folder)
    for step in range(NUM_STEPS):
        records = [
            record(step * 4, outcomes=(False, False, False), dropped="zero_variance"),
            *(record(step * 4 + at) for at in range(1, 6)),
        ]
        write_records(record_path(folder, step), records)
        write_scores(scores_path(folder, step), scores_of(records))
    write_eval(folder / "eval" / "before", num_won=2)
    write_eval(folder / "eval" / "after", num_won=8)
    write_tokenizer(folder / "model")
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A Chromium for the tests of a module; every page that a test opens has a context of its own."""
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect.set_options(timeout=60_000)  # five seconds are too few on a busy machine
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def make_eval() -> Callable[..., None]:
    """:func:`write_eval`, for tests."""
    return write_eval


@pytest.fixture
def make_record() -> Callable[..., GroupRecord]:
    """:func:`record`, for tests."""
    return record


@pytest.fixture
def make_trajectory() -> Callable[..., Trajectory]:
    """:func:`trajectory`, for tests."""
    return trajectory
