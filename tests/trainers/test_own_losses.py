"""A loss from a user's file is tried on made-up tokens before a run begins."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from testkit import counting_runs
from testkit.tiny_models import tiny_model

from agentgym.errors import ConfigError
from agentgym.plugins import Named
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import EvalConfig
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import ForkingTokensOptions
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.losses.trial import try_out
from agentgym.trainers.phases.update_step import UpdateStep
from agentgym.trainers.train import train

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
def made(tmp_path: Path) -> Any:
    """A function that returns the settings of a loss with this result."""

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
        ("logprob - None", "TypeError: unsupported operand"),
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


OFFERED = """
import torch
from agentgym.trainers.losses.component import policy_loss, regulariser
from agentgym.trainers.losses.options import BapoOptions
from agentgym.trainers.losses.policy import bapo_bounds

def bounds(ratio, advantage):
    return {"ratio_bounds": bapo_bounds(ratio, advantage, BapoOptions())}

@policy_loss("bounded", paper="ours", clip_low=None, clip_high=None, prepare=bounds)
def bounded(ratio, advantage, ratio_bounds):
    low, high = ratio_bounds
    return -advantage * ratio.clamp(low, high), (ratio < low) | (ratio > high)

@regulariser("stay", paper="ours")
def stay(logprob, logprob_ref):
    return (logprob - logprob_ref).square()

@regulariser("calm", paper="ours")
def calm(entropy, historical, phase):
    return phase * torch.where(historical.isnan(), entropy, entropy - historical).square()
"""


@pytest.fixture
def offered(tmp_path: Path) -> Path:
    """A file of components that read the values which once only agentgym's own components got."""
    (path := tmp_path / "offered.py").write_text(OFFERED)
    return path


def test_values_that_are_offered_are_filled_for_whoever_reads_them(offered: Path, tmp_path: Path) -> None:
    parts = [f'{{"kind": "{offered}:{name}"}}' for name in ("stay", "calm")]
    settings = counting_runs.config(num_steps=2, eval=EvalConfig(num_episodes=2))
    settings = apply_overrides(
        settings,
        [f"loss.kind={offered}:bounded", f"loss.regularisers=[{', '.join(parts)}]", "zero_variance_filter=off"],
    )
    assert settings.loss.needs_reference and settings.loss.tracks_entropy and settings.loss.needs_whole_update
    train(settings, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == 2 and all({"stay", "calm"} <= row.keys() for row in rows)
    assert rows[-1]["stay"] > 0 and rows[0]["calm"] > 0, "the policy moved away from its reference"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@policy_loss('x', paper='')\ndef x(logprob, mean_weight): ...", "loss 'x': unknown column 'mean_weight'"),
        (
            "@policy_loss('x', paper='')\ndef x(logprob, rewards): ...",
            "unknown column 'rewards'; did you mean 'reward'",
        ),
        ("@policy_loss('x', paper='')\ndef x(logprob, covariance): ...", "loss 'x': unknown column 'covariance'"),
    ],
)
def test_what_nothing_provides_is_refused_with_the_configuration(text: str, said: str, tmp_path: Path) -> None:
    (path := tmp_path / "inner.py").write_text(f"{LOSS.splitlines()[1]}\n{text}\n")
    with pytest.raises(ConfigError, match=said):
        LossConfig(kind=f"{path}:x")


def test_a_part_that_reads_the_entropy_gets_its_gradient(made: Any) -> None:
    step = partial(UpdateStep, tiny_model(), temperature=1.0, reference=None, history=EntropyHistory())
    assert step(config=made(term="-entropy")).entropy_has_gradient
    assert not step(config=LossConfig(token_masks=(ForkingTokensOptions(),))).entropy_has_gradient
