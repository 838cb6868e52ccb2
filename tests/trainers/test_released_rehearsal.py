"""Recipes for large models, rehearsed: their environment, prompts, credit and loss, with the tokenizer they name.

The model has their architecture and random weights. It cannot play, so in each group the oracle plays one episode.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.own_tokenizers import folder, needs
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import agentgym
from agentgym.rollout.record import read_json_lines, read_records, record_path

pytestmark = pytest.mark.slow

ONE_STEP = {
    "num_steps": 1,
    "groups_per_step": 1,
    "group.group_size": 4,
    "group.num_envs": 4,
    "eval.num_episodes": 1,
    "sampling.max_new_tokens": 8,
    "num_threads": 1,
}
ORACLE = {"strategy.guidance.kind": "demonstration"}
ROWS = {"loss.rows_per_update": 16}
SANDBOX = {"env.kwargs.sandbox": "process"}
KEEP = {"credit.selections": [{"kind": "roc", "keep": 2}]}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "searchr1": ("qwen2_5", {**ORACLE, **ROWS, "env.kwargs.questions": ""}),
    "igpo": ("qwen2_5", {**ORACLE, **ROWS, "env.kwargs.questions": ""}),
    "rstar2": ("qwen3", {**ORACLE, **SANDBOX, **KEEP}),
    "searchqa-qwen3-4b": ("qwen3", {**ORACLE, **ROWS, "env.kwargs.questions": ""}),
    "webshop-qwen2.5-1.5b": ("qwen2_5", {**ORACLE, **ROWS}),
    "code-qwen2.5-7b-fsdp": ("qwen2_5", {**ORACLE, **ROWS, **SANDBOX}),
}
"""The tokenizer of each recipe's model, and what is smaller than in the recipe."""
TEXT = "It was founded by traders of the coast, who sold salt, wool and tin to the towns along the river. " * 5


def model(kind: str, path: Path) -> Path:
    """Write a model with random weights and a real tokenizer."""
    sizes: dict[str, Any] = {
        "vocab_size": 151_936,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(0)
    made: Any = Qwen2ForCausalLM(Qwen2Config(**sizes)) if kind == "qwen2_5" else Qwen3ForCausalLM(Qwen3Config(**sizes))
    made.save_pretrained(path)
    for file in folder(kind).iterdir():
        shutil.copy(file, path)
    return path


def questions(path: Path) -> Path:
    """Write questions in HotpotQA's format, each with two passages as long as Wikipedia's."""
    records = [
        {
            "_id": f"q{number}",
            "question": f"In which year was the town founded whose mayor is Mira Kesh{number}?",
            "answer": str(1800 + number),
            "supporting_facts": [[f"Mira Kesh{number}", 0], [f"Tolan Bay{number}", 0]],
            "context": [
                [f"Mira Kesh{number}", [f"Mira Kesh{number} is the mayor of Tolan Bay{number}. {TEXT}"]],
                [f"Tolan Bay{number}", [f"Tolan Bay{number} was founded in {1800 + number}. {TEXT}"]],
            ],
        }
        for number in range(200)
    ]
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


@needs("qwen2_5")
@needs("qwen3")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_on_what_the_oracle_plays_within_its_turns_and_tokens(recipe: str, tmp_path: Path) -> None:
    tokenizer, changes = RECIPES[recipe]
    if "env.kwargs.questions" in changes:
        changes = changes | {"env.kwargs.questions": str(questions(tmp_path / "questions.json"))}
    path = str(model(tokenizer, tmp_path / "model"))
    run = tmp_path / "run"
    agentgym.train(recipe, {**ONE_STEP, **changes, "model.path": path}, run_dir=run)
    (record,) = read_records(record_path(run, 0))
    (shown,) = [episode for episode in record.group.trajectories if episode.is_demonstration]
    assert shown.success and not shown.voids
    (step,) = [line for line in read_json_lines(run / "metrics.jsonl") if line["phase"] == "rl"]
    assert step["trained_tokens"] > 0 and step["logprob_gap_max"] < 1e-4


@needs("qwen3")
def test_spiral_trains_both_players_of_a_game(tmp_path: Path) -> None:
    path = str(model("qwen3", tmp_path / "model"))
    run = tmp_path / "run"
    changes = {**ONE_STEP, "groups_per_step": 4, "group.group_size": 1, "model.path": path}
    agentgym.train("spiral", changes, run_dir=run)
    (step,) = [line for line in read_json_lines(run / "metrics.jsonl") if line["phase"] == "rl"]
    assert step["trained_tokens"] > 0 and {"player/0/return", "player/1/return"} <= step.keys()
