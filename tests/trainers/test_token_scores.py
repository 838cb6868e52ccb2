"""The trainer's scores of sampled tokens: whose they are, what is missing, and that a run keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.policy_updates import on_policy, verdicts

from agentgym.errors import CorruptDataError
from agentgym.rollout.token_scores import TurnScores, read_scores, scores_path, write_scores
from agentgym.trainers.data.samples import FilteredGroup
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.phases.update import update_policy


def scored(model: Any, made: Sequence[FilteredGroup], loss: LossConfig) -> dict[tuple[int, int, int], TurnScores]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = update_policy(model, optimizer, made, loss, temperature=1.0, max_grad_norm=1.0)
    assert [one.key for one in result.scores] == sorted(one.key for one in result.scores)
    return {one.key: one for one in result.scores}


def expected(model: Any, made: Sequence[FilteredGroup]) -> dict[tuple[int, int, int], tuple[list[float], list[float]]]:
    """Log-probabilities and entropies of every turn by a full forward."""
    found = {}
    for verdict in made:
        for member, trajectory in enumerate(verdict.group.trajectories):
            if not trajectory.status.is_evidence:
                continue
            number = 0
            for segment in trajectory.segments:
                ids = torch.tensor([segment.token_ids])
                with torch.no_grad():
                    logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
                at = 0
                for turn in segment.turns:
                    at += len(turn.prompt_ids)
                    places = range(at, at + len(turn.completion.token_ids))
                    at += len(turn.completion.token_ids)
                    entropy = -(logprobs.exp() * logprobs).sum(-1)
                    found[verdict.group.ordinal, member, number] = (
                        [logprobs[k - 1, ids[0, k]].item() for k in places],
                        [entropy[k - 1].item() for k in places],
                    )
                    number += 1
    return found


@pytest.mark.parametrize("mode", ["decoupled", "bypass"])
def test_scores_are_those_of_the_policy_before_the_step(small_model: Any, mode: Any) -> None:
    made = verdicts()
    told = expected(small_model, made)
    found = scored(small_model, made, LossConfig(mode=mode, corrections=()))
    assert set(found) == set(told), "every trained turn has scores, the failed episode has none"
    for key, (logprobs, entropies) in told.items():
        assert found[key].logprobs == pytest.approx(logprobs, abs=1e-4)
        assert found[key].entropies == pytest.approx(entropies, abs=1e-4)


def test_with_several_updates_log_probabilities_are_still_from_before(small_model: Any) -> None:
    made = verdicts()
    told = expected(small_model, made)
    found = scored(small_model, made, LossConfig(num_updates=3, num_epochs=2, mode="decoupled"))
    for key, (logprobs, _) in told.items():
        assert found[key].logprobs == pytest.approx(logprobs, abs=1e-4)


def test_where_only_a_later_policy_was_computed_nothing_is_said(small_model: Any) -> None:
    found = scored(small_model, verdicts(), LossConfig(num_updates=3, mode="bypass", corrections=()))
    known = {one.key[0] for one in found.values() if all(value is not None for value in one.logprobs)}
    unknown = {one.key[0] for one in found.values() if all(value is None for value in one.logprobs)}
    assert known and unknown and known.isdisjoint(unknown), "groups of the first minibatch, and those of later ones"
    assert all(value is not None for one in found.values() for value in one.entropies)


def test_tokens_that_are_not_trained_have_no_score(small_model: Any) -> None:
    made = on_policy(small_model)
    credit = made[0].credit
    weight = credit.loss_weight.copy()
    weight[0] = 0.0
    masked = [
        replace(made[0], credit=replace(credit, loss_weight=weight)),
        replace(made[1], dropped="zero_variance"),
        *made[2:],
    ]
    found = scored(small_model, masked, LossConfig())
    assert set(found[0, 0, 0].logprobs) == set(found[0, 0, 0].entropies) == {None}
    assert not any(key[0] == 1 for key in found), "a group that was left out"


def test_a_file_of_scores(tmp_path: Path) -> None:
    assert read_scores(tmp_path, 3) == {}
    one = TurnScores(ordinal=5, member=1, turn=2, logprobs=(-0.5, None), entropies=(1.25, None))
    write_scores(scores_path(tmp_path, 3), [one])
    assert read_scores(tmp_path, 3) == {(5, 1, 2): one}
    first = scores_path(tmp_path, 3).read_bytes()
    write_scores(scores_path(tmp_path, 3), [one])
    assert scores_path(tmp_path, 3).read_bytes() == first
    scores_path(tmp_path, 3).write_bytes(first[:-9])
    with pytest.raises(CorruptDataError, match=r"scores-000003\.jsonl\.gz cannot be read"):
        read_scores(tmp_path, 3)
