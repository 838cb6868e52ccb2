"""A run whose template, pages, tools, user and judge are hostile trains on what is valid, and on nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from testkit import hostile_peers
from testkit.counting_runs import config, weights, weights_in
from testkit.hostile_peers import FORGED, PEERS, SERVER
from testkit.local_servers import Reply, Seen, serving
from transformers import AutoTokenizer

from agentgym.credit.compose import credit_groups
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.record import GroupRecord, read_records, record_path, recorded_steps
from agentgym.rollout.request import EpisodeLimits
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.train import train
from agentgym.types import Status, Trajectory, TrajectoryGroup

pytestmark = pytest.mark.slow
BROKEN = """
{%- for message in messages if message.content.startswith("The count is 3.") -%}
{{ "".__class__.__base__.__subclasses__() if message.content | length % 2 else 1 // 0 }}
{%- endfor -%}
"""
"""Divides by zero or reaches for Python where the count is at three."""
WORLD = Path(hostile_peers.__file__).with_name("hostile_env.py")
NUM_STEPS = 4


def parts(config: TrainConfig) -> TrainConfig:
    return replace(
        config,
        env=replace(config.env, id=f"{WORLD}:Hostile-v0"),
        engine=replace(config.engine, batch_invariant=True),  # the same episodes whatever else the machine does
        model=replace(config.model, max_context_tokens=320, num_text_episodes=60),
        groups_per_step=10,
        group=GroupConfig(
            group_size=6, num_envs=12, max_retries=0, max_failure_rate=1.0,
            limits=EpisodeLimits(reset_timeout_s=20.0, step_timeout_s=20.0),
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The folder of the model that the run began with, and the run's own."""
    folder = tmp_path_factory.mktemp("runs")
    first = parts(config(sft=SftConfig(num_demos=480, num_epochs=4, batch_size=8, checkpoint_every=80), num_steps=1))

    def answer(request: Seen) -> Reply:
        status, body, headers = hostile_peers.answer(request.path, request.body)
        return Reply(body, status, headers)

    with serving(answer) as (url, _), pytest.MonkeyPatch.context() as patch:
        patch.setenv(SERVER, url)
        train(first, folder / "first")
        model = folder / "first" / "model"
        template = model / "chat_template.jinja"
        template.write_text(template.read_text(encoding="utf-8") + BROKEN, encoding="utf-8")
        second = replace(
            first,
            num_steps=NUM_STEPS,
            model=replace(first.model, path=str(model)),
            sft=replace(first.sft, num_demos=0),
        )
        train(second, folder / "hostile")
    yield model, folder / "hostile"


@pytest.fixture(scope="module")
def records(runs: tuple[Path, Path]) -> list[GroupRecord]:
    run_dir = runs[1]
    assert recorded_steps(run_dir) == tuple(range(NUM_STEPS))
    return [record for step in recorded_steps(run_dir) for record in read_records(record_path(run_dir, step))]


def peer_of(record: GroupRecord) -> str:
    return PEERS[record.group.task.seed % len(PEERS)]


def test_faults_are_no_rewards_and_every_peer_was_met(records: list[GroupRecord]) -> None:
    seen = set[tuple[str, bool]]()
    for record in records:
        for trajectory in record.group.trajectories:
            is_evidence = trajectory.status.is_evidence
            seen.add(("template" if "template" in (trajectory.error or "") else peer_of(record), is_evidence))
            if is_evidence:
                assert trajectory.reward is not None and math.isfinite(trajectory.reward)
            else:
                assert trajectory.reward is None and trajectory.success is None and trajectory.error
                assert trajectory.status in (Status.ENV_ERROR, Status.TIMEOUT), trajectory.error
    assert {peer for peer, is_evidence in seen if is_evidence} == set(PEERS)
    assert {"tool", "user", "judge", "template"} <= {peer for peer, is_evidence in seen if not is_evidence}


def test_nothing_that_was_said_became_a_mark(runs: tuple[Path, Path], records: list[GroupRecord]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(runs[0])
    act, end = (tokenizer.convert_tokens_to_ids(mark) for mark in ("<|act|>", "<|end|>"))
    special = set(tokenizer.all_special_ids) | {act, end}
    said = " ".join(message.text for r in records for t in r.group.trajectories for message in _heard(t))
    assert FORGED[:20] in said
    for record in records:
        for trajectory in record.group.trajectories:
            for turn in trajectory.turns:
                marks = [token for token in turn.prompt_ids if token in special]
                assert marks in ([act], [end, act]), marks


def _heard(trajectory: Trajectory) -> list:  # type: ignore[type-arg]
    return [*trajectory.observation, *(reply for turn in trajectory.turns for reply in turn.replies)]


def test_credit_and_weights_come_from_the_valid_members(runs: tuple[Path, Path], records: list[GroupRecord]) -> None:
    model, run_dir = runs
    mixed = [r for r in records if r.dropped is None and len(r.group.valid) < len(r.group.trajectories)]
    assert mixed
    for step in recorded_steps(run_dir):
        kept = [r for r in read_records(record_path(run_dir, step)) if len(r.group.valid) > 1]
        bare = [TrajectoryGroup(ordinal=r.group.ordinal, task=r.group.task, trajectories=r.group.valid) for r in kept]
        alone = iter(credit_groups(bare, parts(config()).credit).advantage.tolist())
        for record in kept:
            recorded = [[turn.advantage for turn in turns] for turns in record.credit]
            for trajectory, advantages in zip(record.group.trajectories, recorded, strict=True):
                if not trajectory.status.is_evidence:
                    assert advantages == []
                    continue
                expected = [next(alone) for _ in trajectory.turns]
                assert record.dropped is not None or np.allclose(advantages, expected, atol=1e-6)
    rows = [json.loads(row, parse_constant=pytest.fail) for row in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["phase"] == "rl"]
    assert [row["step"] for row in steps] == list(range(1, NUM_STEPS + 1))
    assert all(row["grad_norm"] > 0 for row in steps)
    assert weights(run_dir) != weights_in(model)
