"""Seconds to score a reference answer after every turn: each context in a row of its own against one packed row.

    OMP_NUM_THREADS=1 PYTHONPATH=. python benchmarks/credit/scoring.py --output benchmarks/credit/scoring.json

Random weights, random tokens: the time does not depend on them. Best of the rounds; ``ratio`` is batched over packed,
above 1 where packing is faster.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentgym.render.chat import ChatRenderer
from agentgym.trainers.config.train import ColumnsConfig
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.trainers.scoring.answers import score_answers
from agentgym.types import (
    Completion,
    FinishReason,
    Message,
    Segment,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

NUM_GROUPS, GROUP_SIZE = 4, 4
PROMPT_TOKENS, OBSERVATION_TOKENS, ACTION_TOKENS = 60, 30, 12
MODELS = {"3 layers of 128": (128, 3), "4 layers of 256": (256, 4)}


def episodes(num_turns: int, vocab_size: int) -> tuple[TrajectoryGroup, ...]:
    """Groups whose members share their first prompt and nothing else."""
    rng = np.random.default_rng(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(3, vocab_size, size=count).tolist())

    groups = []
    for number in range(NUM_GROUPS):
        task = Task(id=f"t{number}", split="train", seed=0, data={"answers": ["the reference answer"]})
        first = tokens(PROMPT_TOKENS)
        members = []
        for _ in range(GROUP_SIZE):
            turns = []
            for index in range(num_turns):
                sampled = Completion(
                    token_ids=tokens(ACTION_TOKENS),
                    logprobs=(0.0,) * ACTION_TOKENS,
                    policy_versions=(0,) * ACTION_TOKENS,
                    finish_reason=FinishReason.STOP,
                )
                prompt = first if index == 0 else tokens(OBSERVATION_TOKENS)
                turns.append(Turn(index=index, prompt_ids=prompt, completion=sampled, action=Message("assistant")))
            segment = Segment(tuple(turns))
            members.append(
                Trajectory(task=task, env_id="b", status=Status.COMPLETED, segments=(segment,), seed=0)
            )  # fmt: skip
        groups.append(TrajectoryGroup(ordinal=number, task=task, trajectories=tuple(members)))
    return tuple(groups)


def compare(hidden_size: int, num_layers: int, num_turns: int, num_rounds: int) -> dict[str, float]:
    """Measure both ways over the same episodes, alternating."""
    tokenizer = train_tokenizer(["the reference answer", "<think> enough information to answer"] * 9, 512)
    model = build_model(tokenizer, ModelConfig(hidden_size=hidden_size, num_layers=num_layers), 0)
    renderer, groups = ChatRenderer(tokenizer), episodes(num_turns, len(tokenizer))
    best = {"batched": float("inf"), "packed": float("inf")}
    levels: dict[str, Any] = {}
    for _ in range(num_rounds):
        for scoring in ("batched", "packed"):
            began = time.perf_counter()
            levels[scoring] = score_answers(
                model,
                groups,
                renderer,
                template=ColumnsConfig().answer_template,
                scoring=scoring,  # type: ignore[arg-type]
                tokens_per_microbatch=8192,
            ).logprobs
            best[scoring] = min(best[scoring], time.perf_counter() - began)
    gap = max(np.abs(a - b).max() for a, b in zip(levels["batched"], levels["packed"], strict=True))
    return {
        "batched_s": round(best["batched"], 4),
        "packed_s": round(best["packed"], 4),
        "ratio": round(best["batched"] / best["packed"], 2),
        "largest_difference": float(f"{gap:.1e}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, nargs="+", default=[2, 8, 16])
    args = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    results: dict[str, Any] = {
        "what": f"{NUM_GROUPS} groups of {GROUP_SIZE} episodes, {PROMPT_TOKENS} prompt tokens and then "
        f"{OBSERVATION_TOKENS} observation and {ACTION_TOKENS} action tokens per turn; one reference; one thread",
        "machine": f"{platform.system()} {platform.machine()}, CPU",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "results": {
            name: {f"{num_turns} turns": compare(*shape, num_turns, args.rounds) for num_turns in args.turns}
            for name, shape in MODELS.items()
        },
    }
    text = json.dumps(results, indent=2)
    print(text)
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
