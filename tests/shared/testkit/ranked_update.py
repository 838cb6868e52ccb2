"""A program for torchrun: updates of a small model on rows from a seed; the first rank saves the final weights.

``python -m torch.distributed.run --nproc-per-node N ranked_update.py OUT LAYOUT [PRECISION [CONTEXT_SIZE [spread]]]``

With ranks that split rows, the layers are recomputed for the gradient in the second of three steps. With ``spread``
each rank has a part of the groups, and outlines of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgym.rollout.record import GroupRecord
from agentgym.rollout.token_scores import TurnScores
from agentgym.trainers.data.outline import outlined
from agentgym.trainers.data.samples import FilteredGroup
from agentgym.trainers.data.spread import RankRows
from agentgym.trainers.distributed.config import RanksConfig
from agentgym.trainers.distributed.ranks import Ranks, join_ranks
from agentgym.trainers.distributed.sharding import shard, whole
from agentgym.trainers.kinds import LayoutKind, Precision
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models.precision import use_fused_attention
from agentgym.trainers.phases.update import update_policy
from agentgym.types import TurnCredit
from testkit.made_groups import group, trajectory, turn

UPDATES: tuple[dict[str, Any], ...] = (
    {"num_updates": 1},
    {"num_updates": 2},
    {"num_updates": 2, "num_epochs": 2},
    {"num_updates": 3, "num_epochs": 2, "minibatch": "tokens", "max_kl": 9.5},
)
"""Settings of the updates. The recorded log-probabilities are invented: the KL is about 9 and changes every update."""


def made_verdicts(seed: int) -> list[FilteredGroup]:
    """Return three groups of three episodes of one to four turns, with advantages; members share a prefix."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> list[int]:
        return torch.randint(1, 64, (count,), generator=generator).tolist()

    verdicts = []
    for ordinal in range(3):
        prompt = tokens(10)
        made = [
            trajectory(
                [turn(tokens(3) if at else prompt, tokens(4), index=at) for at in range(1 + (ordinal + member) % 4)]
            )
            for member in range(3)
        ]
        credit = tuple(
            tuple(
                TurnCredit(shaped_reward=0.0, return_to_go=0.0, advantage=(-1.0) ** at * (member + 0.5))
                for at, _ in enumerate(one.turns)
            )
            for member, one in enumerate(made)
        )
        verdicts.append(FilteredGroup.of_record(GroupRecord(group=group(*made, ordinal=ordinal), credit=credit)))
    return verdicts


def small_model(seed: int = 0) -> Any:
    """Return a Qwen3 model of three layers with grouped queries and tied embeddings."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def spread(verdicts: Sequence[FilteredGroup], ranks: Ranks) -> list[FilteredGroup]:
    """Return the verdicts as a rank sees them that has every N-th group."""
    return [
        verdict if at % ranks.count == ranks.rank else replace(verdict, group=outlined(verdict.group, with_texts=False))
        for at, verdict in enumerate(verdicts)
    ]


@contextmanager
def counted_rows() -> Iterator[list[tuple[int, int]]]:
    """Yield a list that receives, for each minibatch, the numbers of rows that this rank received and of all rows."""
    counts: list[tuple[int, int]] = []
    fetched = RankRows.fetched

    def counting(self: RankRows, ranks: Ranks, wanted: Sequence[Collection[int]]) -> Any:
        rows = fetched(self, ranks, wanted)
        counts.append((len(rows), len({row for of_rank in wanted for row in of_rank})))
        return rows

    with patch.object(RankRows, "fetched", counting):
        yield counts


def main(
    out: Path, layout: LayoutKind, precision: Precision = "float32", context_size: str = "1", where: str = "everywhere"
) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks(RanksConfig(context_size=int(context_size)))
    model: Any = small_model()
    use_fused_attention(model)
    model = shard(model, ranks, precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5)  # as in training
    metrics: list[dict[str, float]] = []
    lengths: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, args, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    scores: list[TurnScores] = []
    how: dict[str, Any] = {"temperature": 0.9, "max_grad_norm": 0.5, "rollouts_are_sharded": where == "spread"}
    with counted_rows() as counts:
        for step in range(3):
            for updates in UPDATES:
                recomputes = context_size != "1" and step == 1
                loss = LossConfig(
                    **updates,
                    tokens_per_microbatch=64,
                    layout=layout,
                    precision=precision,
                    recompute_activations=recomputes,
                )
                verdicts = made_verdicts(seed=step)
                if where == "spread":
                    verdicts = spread(verdicts, ranks)
                found = update_policy(model, optimizer, verdicts, loss, seed=step, **how)
                metrics.append(found.metrics)
                scores += found.scores
    state, held = whole(model.state_dict()), whole(optimizer.state_dict())
    every = sorted((asdict(one) for part in ranks.gathered(scores) for one in part), key=str)
    rows = ranks.gathered(counts)
    if ranks.is_main:
        told = {"metrics": metrics, "longest": max(lengths), "scores": every, "rows": rows}
        torch.save({"model": state, "optimizer": held, **told}, out)
    ranks.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), cast("LayoutKind", sys.argv[2]), *cast("tuple[Precision, str, str]", tuple(sys.argv[3:])))
