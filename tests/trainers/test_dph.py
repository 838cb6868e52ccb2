"""DPH-RL: worked examples of its divergences, the store of the start policy's samples, and a run that they change."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from testkit.acting import metrics_after, weights_after
from testkit.counting_runs import config

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_records, record_path
from agentgym.rollout.strategies.start_samples import StartSamplesOptions, start_samples
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.losses.published.dph import DphOptions, dph, dph_samples
from agentgym.trainers.train import train

REPLAYED, VERSION = torch.tensor([1, 1, 0]), torch.tensor([0, 3, 0])
"""A stored sample of the start policy, a replayed one of a later policy, and a fresh one."""
REPLAY = 'strategy.replay={"kind": "start_samples", "share": 0.5}'
KEEPS = "optimizer.lr=0.01"


def test_dph() -> None:
    """The token is twice as likely as under the start policy: u is 2."""
    logprob = torch.full((3,), math.log(0.5), dtype=torch.float64)
    reference = torch.full((3,), math.log(0.25), dtype=torch.float64)
    forward = dph(logprob, reference, REPLAYED, VERSION, DphOptions())
    assert forward.tolist() == pytest.approx([1 - math.log(2), 0, 0])
    js = dph(logprob, reference, REPLAYED, VERSION, DphOptions(divergence="js"))
    assert js.tolist() == pytest.approx([2 * math.log(2) - 3 * math.log(1.5), 0, 0])


@pytest.mark.parametrize("divergence", ["forward_kl", "js"])
def test_its_gradient_lifts_what_was_forgotten(divergence: str) -> None:
    logprob = torch.tensor([-5.0, -1.0], requires_grad=True)
    options = DphOptions(divergence=divergence)  # type: ignore[arg-type]
    reference, one = torch.tensor([-1.0, -1.0]), torch.ones(2, dtype=torch.long)
    dph(logprob, reference, one, one - 1, options).sum().backward()  # type: ignore[no-untyped-call]
    assert logprob.grad is not None and logprob.grad[0] < -0.05 and logprob.grad[1] == 0
    far = torch.tensor([-900.0, 0.0])
    assert dph(far, far.flip(0), one, one - 1, options).isfinite().all()


def test_stored_samples_have_no_policy_loss() -> None:
    assert dph_samples(REPLAYED, VERSION).tolist() == [True, False, False]


def test_the_store_is_that_of_the_first_steps() -> None:
    rng = np.random.default_rng(0)
    assert start_samples([4, 4, 3, 3, 1], 6, 4, rng, StartSamplesOptions(share=0.5)) == [0, 1]
    assert start_samples([4, 4, 3, 3, 1], 6, 4, rng, StartSamplesOptions(share=0.5, steps=2)) == [0, 1, 2, 3]
    assert len(start_samples([4] * 20, 6, 4, rng, StartSamplesOptions())) == 2, "2 of 8"
    assert start_samples([0, 0], 6, 0, rng, StartSamplesOptions(share=0.5)) == [], (
        "a step does not train its own groups twice"
    )


def test_a_run_trains_the_first_steps_groups_again(tmp_path: Path) -> None:
    made = apply_overrides(config(num_steps=3, checkpoint_every=3), [REPLAY, "zero_variance_filter=off"])
    train(made, tmp_path / "run")
    of_step = [read_records(record_path(tmp_path / "run", step)) for step in range(3)]
    again = [
        {
            member.replayed_step
            for one in records
            for member in one.group.trajectories
            if member.replayed_step is not None
        }
        for records in of_step
    ]
    assert again == [set(), {0}, {0}] and [len(records) for records in of_step] == [3, 6, 6]


@pytest.mark.parametrize("divergence", ["forward_kl", "js"])
def test_it_acts_in_a_run(divergence: str) -> None:
    masked = (REPLAY, 'loss.token_masks=[{"kind": "dph_samples"}]')
    chosen = (*masked, f'loss.regularisers=[{{"kind": "dph", "coef": 5, "divergence": "{divergence}"}}]')
    first, second = metrics_after(*chosen)
    assert first["dph"] == 0 < second["dph"] and second["num_replayed"] > 0
    assert len({weights_after(*chosen), weights_after(*masked), weights_after(REPLAY)}) == 3


def test_it_is_off_at_0() -> None:
    with pytest.raises(ConfigError, match="coef"):
        apply_overrides(config(), ['loss.regularisers=[{"kind": "dph", "coef": 0}]'])


@pytest.mark.parametrize(
    "part", ['loss.regularisers=[{"kind": "dph"}]', 'loss.token_masks=[{"kind": "dph_samples"}]'], ids=["dph", "mask"]
)
def test_it_is_refused_where_nothing_is_replayed(part: str) -> None:
    with pytest.raises(ConfigError, match=r"acts on replayed tokens, and there are none: set strategy\.replay="):
        apply_overrides(config(), [part])
    apply_overrides(config(), [part, REPLAY])
