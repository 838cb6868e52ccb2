"""A loss from a user's file is tried on made-up tokens before a run begins."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from testkit.tiny_models import tiny_model

from agentgym.errors import ConfigError
from agentgym.plugins import Named
from agentgym.trainers.losses.component import CORRECTIONS, POLICY_LOSSES, REGULARISERS
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import ForkingTokensOptions
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.losses.trial import try_out
from agentgym.trainers.phases.update_step import UpdateStep

LOSS = """
from agentgym.trainers.losses.component import correction, policy_loss, regulariser

@policy_loss("mine", paper="ours", status="experimental")
def mine(ratio, logprob, advantage, entropy, row, turn, high: float):
    return RESULT
"""
WEIGHT = """
@correction("weight", paper="ours")
def weight(log_rho_N, row):
    return RESULT
"""
TERM = """
@regulariser("term", paper="ours")
def term(logprob, entropy, logprob_ref):
    return RESULT
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns the settings of a loss with this result, which other tests do not find registered."""
    for registry in (POLICY_LOSSES, CORRECTIONS, REGULARISERS):
        monkeypatch.setattr(registry, "_components", dict(registry._all()))

    def settings(result: str = "-logprob, row > 1", weight: str = "", term: str = "") -> LossConfig:
        text = LOSS.replace("RESULT", result)
        text += (WEIGHT.replace("RESULT", weight) if weight else "") + (TERM.replace("RESULT", term) if term else "")
        (path := tmp_path / "mine.py").write_text(text)
        return LossConfig(
            kind=f"{path}:mine",
            corrections=(Named(kind=f"{path}:weight"),) if weight else (),
            regularisers=(Named(kind=f"{path}:term"),) if term else (),
        )

    return settings


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("-advantage * ratio", r"it returned a tensor of shape \[6\]$"),
        ("(-advantage * ratio).mean(), ratio > high", r"returned a tensor of shape \[\], a tensor of shape \[6\]"),
        ("-advantage * ratio, 0", r"a tensor of shape \[6\], a int"),
        ("-advantage * ratio.detach(), ratio > high", "no gradient; logprob, ratio or entropy was detached"),
        ("-advantage * ratio * float('nan'), ratio > high", "it returned .nan, .* for finite log-probabilities"),
        ("-advantage * ratio / 'a', ratio > high", "TypeError: unsupported operand"),
        ("-advantage.mul_(2) * ratio, ratio > high", "it changes advantage in place"),
    ],
)
def test_what_no_loss_may_return_is_found_before_training(result: str, said: str, made: Any) -> None:
    with pytest.raises(ConfigError, match=f"mine: .*{said}"):
        try_out(made(result))


@pytest.mark.parametrize("result", ["-advantage * ratio.clamp(max=high), ratio > high", "-logprob, entropy > row"])
def test_a_sound_loss_passes(result: str, made: Any) -> None:
    settings = made(result)
    assert settings.component.is_own, "others are not tried, whatever status they claim"
    try_out(settings)


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        ("-log_rho_N.exp()", "expected finite weights from 0 on"),
        ("log_rho_N * float('nan')", "expected finite weights from 0 on"),
        ("log_rho_N.exp().mean()", r"a tensor of shape \[6\] for 6 tokens; it returned a tensor of shape \[\]"),
        ("None", "it returned a NoneType"),
        ("log_rho_N.exp_()", "it changes log_rho_N in place"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_no_correction_may_return_is_found_before_training(weight: str, said: str, made: Any) -> None:
    with pytest.raises(ConfigError, match=f"correction weight: .*{said}"):
        try_out(made(weight=weight))


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("logprob.sum()", r"a tensor of shape \[6\] for 6 tokens; it returned a tensor of shape \[\]"),
        ("logprob.detach()", "no gradient; logprob, ratio or entropy was detached"),
        ("logprob / 0", "for finite log-probabilities"),
        ("None", "it returned a NoneType"),
        ("logprob - logprob_ref", "TypeError: unsupported operand"),
    ],
)
def test_what_no_regulariser_may_return_is_found_before_training(term: str, said: str, made: Any) -> None:
    with pytest.raises(ConfigError, match=f"regulariser term: .*{said}"):
        try_out(made(term=term))


@pytest.mark.parametrize(
    ("weight", "term"), [("log_rho_N.exp().clamp(max=2)", "-entropy"), ("row > 0", "logprob * entropy")]
)
def test_sound_corrections_and_regularisers_pass(weight: str, term: str, made: Any) -> None:
    settings = made(weight=weight, term=term)
    assert sum(part.is_own for part, _ in settings.parts()) >= 2, "others are not tried"
    try_out(settings)


def test_a_part_that_reads_the_entropy_gets_its_gradient(made: Any) -> None:
    step = partial(UpdateStep, tiny_model(), temperature=1.0, reference=None, history=EntropyHistory())
    assert step(config=made(term="-entropy")).entropy_has_gradient
    assert not step(config=LossConfig(token_masks=(ForkingTokensOptions(),))).entropy_has_gradient
