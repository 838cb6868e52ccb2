"""Groups with credit, for updates of a small policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from agentgym.credit.credited import credit_columns
from agentgym.trainers.data.samples import FilteredGroup, filter_groups
from agentgym.types import Status, TurnCredit
from testkit.made_groups import group, trajectory, turn


def verdicts(num_groups: int = 5, *, scale: float = 1.0) -> list[FilteredGroup]:
    """Return groups of three episodes of different lengths; one has two context windows, one failed."""
    made: list[FilteredGroup] = []
    for ordinal in range(num_groups):
        members = []
        for member in range(3):
            prompt, sampled = [1 + ordinal, 2], [3 + (ordinal + member + k) % 20 for k in range(2 + member + ordinal)]
            windows = [[turn(prompt, sampled)]] + ([[turn([9], [8, 7], index=1)]] if member == 1 else [])
            status = Status.ENV_ERROR if (ordinal, member) == (1, 0) else Status.COMPLETED
            members.append(trajectory(*windows, status=status))
        credit = tuple(
            tuple(TurnCredit(shaped_reward=0.0, return_to_go=0.0, advantage=scale * (member - 1.2)) for _ in one.turns)
            for member, one in enumerate(members)
        )
        groups = [group(*members, ordinal=ordinal)]
        made += filter_groups(groups, credit_columns(groups, [credit]), 1, "advantage")
    return made


def state(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def on_policy(model: Any) -> list[FilteredGroup]:
    """Return the groups with the model's own log-probabilities of their tokens."""
    made = verdicts(scale=3.0)
    for verdict in made:
        for one in verdict.group.trajectories:
            for segment in one.segments:
                (single,) = segment.turns
                ids = torch.tensor([segment.token_ids])
                with torch.no_grad():
                    logits = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
                at = range(len(single.prompt_ids), ids.shape[1])
                logprobs = tuple(logits[k - 1, ids[0, k]].item() for k in at)
                completion = replace(single.completion, logprobs=logprobs)
                object.__setattr__(segment, "turns", (replace(single, completion=completion),))
    return made
