"""Information gain in WikiWorld, the whole way: what is searched and read makes the answer likelier."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentgym.credit.columns import turn_table
from agentgym.credit.compose import CreditConfig
from agentgym.credit.shapers.information_gain import InformationGainOptions, information_gain
from agentgym.rollout.agent import DemonstrationAgent
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, TrainConfig
from agentgym.trainers.critics.columns import ColumnMaker
from agentgym.trainers.data.demos import Demonstrator
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.model import load_model
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run
from agentgym.trainers.train import train

WORLD = {
    "num_pages": 16,
    "num_worlds": 0,
    "hops": [1],
    "vocabulary": 16,
    "aliases": 0.0,
    "stale_pages": 0.0,
    "distractors": 0.0,
    "fillers": 0,
    "relations": ["author", "mayor"],
    "max_results": 1,
    "max_turns": 4,
}


def config(num_demos: int, num_steps: int) -> TrainConfig:
    made = replace(
        load_recipe("tiny"),
        env=EnvConfig(id="agentgym/WikiWorld-v0", kwargs=WORLD),
        model=ModelConfig(hidden_size=64, num_layers=2, head_dim=16, vocab_size=400, max_context_tokens=256),
        sft=SftConfig(num_demos=num_demos, noise=0.0, num_epochs=1, batch_size=4),
        num_steps=num_steps,
        groups_per_step=2,
        group=GroupConfig(group_size=4, num_envs=8),
        credit=CreditConfig(estimator="igpo", shapers=(InformationGainOptions(),)),
        eval=EvalConfig(num_episodes=1),
    )
    return replace(made, columns=replace(made.columns, answer_template="answer: {answer}"))


def test_igpo_trains_in_wikiworld_and_no_prompt_holds_an_answer_that_no_page_said(tmp_path: Path) -> None:
    train(config(num_demos=64, num_steps=2), tmp_path)
    rows = [row for row in read_json_lines(tmp_path / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == 2
    assert all(row["trained_tokens"] and row["credit/info_gain_mismatches"] == 0 for row in rows)
    assert all(math.isfinite(row["loss"]) and row["info_gain"] != 0 for row in rows)
    for record in read_records(record_path(tmp_path, 1)):
        for episode in record.group.valid:
            assert episode.task.answers
            assert not any(answer in message.text for answer in episode.task.answers for message in episode.observation)


@pytest.mark.slow
def test_the_turns_that_show_the_answer_gain_information(tmp_path: Path) -> None:
    """A model that learnt from the oracle to say what it read: the gain is where the answer comes into sight."""
    made = config(num_demos=800, num_steps=0)
    train(made, tmp_path / "run")
    run = Run(made, tmp_path)
    trained, _ = load_model(tmp_path / "run" / "model")
    run.model.load_state_dict(trained.state_dict())
    groups = asyncio.run(
        run_groups(
            list(enumerate(run.envs[0].train_tasks[900:912])),
            run.envs[0].pool,
            lambda env, seed: DemonstrationAgent(Demonstrator(env, 0.0, seed), run.renderer, 256, 32),
            GroupConfig(group_size=1, min_valid=1, num_envs=8),
            seed=0,
        )
    )
    columns = ColumnMaker(made, run.model, run.renderer).make(groups)
    gains = information_gain(turn_table(groups).with_columns(**columns.columns)).table.info_gain
    assert gains is not None
    first = [
        any(answer in reply.text for reply in turn.replies for answer in episode.task.answers) and turn.index == 0
        for group in groups
        for episode in group.valid
        for turn in episode.turns
    ]
    shows = np.array(first)
    assert shows.sum() >= 10, "the first result's snippet says it"
    assert gains[shows].min() > 0.0
    assert gains[shows].mean() > np.nanmean(gains[~shows]) + 0.3, gains
