"""What losses read of a whole update: denominators, mean weights, and EPO's history."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from testkit.ranked_update import made_verdicts
from testkit.tiny_models import tiny_model
from testkit.token_batches import assert_close, frozen_tokens, logs, normaliser, sample, scores, tokens

from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.samples import build_samples
from agentgym.trainers.losses import options as of
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import update_facts
from agentgym.trainers.losses.loss import token_logprobs
from agentgym.trainers.losses.regularisers import EntropyHistory, entropy_sums
from agentgym.trainers.phases.update import update_policy

RHO = [0.3, 0.9, 1.2, 4, 6]


def test_batch_normalise_counts_a_sequence_once() -> None:
    row = [0, 0, 0, 1]
    assert normaliser(logs([1, 1, 0.5, 1.5]), of.SequenceTisOptions(), row=row) == pytest.approx((0.5 + 1.5) / 2)
    turns = of.SequenceTisOptions(level="turn")
    mean = normaliser(logs([1, 1, 0.5, 1.5]), turns, row=row, turn=[0, 0, 1, 2])
    assert mean == pytest.approx((1 + 0.5 + 1.5) / 3)


def test_batch_normalise_leaves_rejected_tokens_out() -> None:
    assert normaliser(logs(RHO), of.IcepopOptions()) == pytest.approx((0.9 + 1.2 + 4) / 3)
    rejection = of.DivergenceRejectionOptions(threshold=0.3)  # of other tokens: their weights stay in the mean
    mean = normaliser(logs(RHO), of.TokenTisOptions(), rejection)
    assert mean == pytest.approx((0.3 + 0.9 + 1.2 + 2 + 2) / 5)


def test_rejected_tokens_leave_the_denominators() -> None:
    """verl averages over the tokens that stay; ``denominator="all"`` divides by all trained ones."""
    log_rho, layout = [0.0, 1.0, 0.0, 0.0], {"row": [0, 0, 1, 1]}
    given_scores = scores([0.0] * 4, log_rho)
    expected = {
        ("token-mean", "kept"): [1 / 3, 0, 1 / 3, 1 / 3],
        ("token-mean", "all"): [0.25] * 4,
        ("seq-mean-token-mean", "kept"): [1 / 2, 0, 1 / 4, 1 / 4],
        ("seq-mean-token-sum", "kept"): [1 / 2, 0, 1 / 2, 1 / 2],
        ("seq-mean-token-sum-norm", "kept"): [1 / 16, 0, 1 / 16, 1 / 16],
    }
    for (aggregation, denominator), shares in expected.items():
        options: Any = of.DivergenceRejectionOptions(denominator=denominator)  # type: ignore[arg-type]
        config = LossConfig(corrections=(options,), aggregation=aggregation, norm_length=8)  # type: ignore[arg-type]
        batch = tokens([1.0] * 4, **layout)
        frozen = frozen_tokens(given_scores.logprob, given_scores.logprob_old)
        facts = update_facts([batch], [frozen], config)
        assert_close(facts.share_of(batch), shares)
        assert config.needs_whole_update == (denominator == "kept")


def test_shares_are_those_of_the_update_in_every_micro_batch() -> None:
    rows = [sample(2, 3, trajectory=0), sample(4, 2, trajectory=1), sample(6, 4, trajectory=1)]
    config = LossConfig(corrections=(of.DivergenceRejectionOptions(),), aggregation="seq-mean-token-mean")
    batches = build_batches(rows, aggregation="seq-mean-token-mean", tokens_per_microbatch=6)
    assert [batch.first for batch in batches] == [0, 3, 5]
    old = [batch["logprob_rollout"].clone() for batch in batches]
    old[2][0] += 9.0
    frozen = [frozen_tokens(values) for values in old]
    shares = [update_facts(batches, frozen, config).share_of(batch) for batch in batches]
    assert_close(torch.cat(shares), [1 / 6] * 3 + [1 / 10] * 2 + [0] + [1 / 10] * 3)


@pytest.mark.parametrize("num_updates", [1, 2])
def test_epo_history_holds_the_present_step(num_updates: int) -> None:
    """As released: the entropies are those before the step's first update, however many updates follow."""
    model: Any = tiny_model()
    verdicts = made_verdicts(seed=0)
    rows = build_batches(build_samples([verdict for verdict in verdicts if verdict.dropped is None]))
    with torch.no_grad():
        measured = [(batch["turn_index"], token_logprobs(model, batch, 1.0)[1]) for batch in rows]
    before = EntropyHistory().after({0: 3.0})
    expected = before.after_tokens([entropy_sums(*(torch.cat(parts) for parts in zip(*measured, strict=True)))])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    config = LossConfig(regularisers=(of.EpoOptions(),), num_updates=num_updates)
    result = update_policy(model, optimizer, verdicts, config, temperature=1.0, max_grad_norm=1.0, history=before)
    assert result.history.num_steps == 2
    for turn in range(4):
        assert result.history.mean(turn) == pytest.approx(expected.mean(turn), rel=1e-4)
