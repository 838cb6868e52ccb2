"""A loss from a user's file is tried on made-up tokens before a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import ConfigError
from agentgym.trainers.losses.component import POLICY_LOSSES
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.trial import try_out

LOSS = """
from agentgym.trainers.losses.component import policy_loss

@policy_loss("mine", paper="ours")
def mine(ratio, logprob, advantage, entropy, row, turn, high: float):
    return RESULT
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns the settings of a loss with this result, which other tests do not find registered."""
    monkeypatch.setattr(POLICY_LOSSES, "_components", dict(POLICY_LOSSES._own()))

    def settings(result: str) -> LossConfig:
        (tmp_path / "mine.py").write_text(LOSS.replace("RESULT", result))
        return LossConfig(kind=f"{tmp_path / 'mine.py'}:mine")

    return settings


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("-advantage * ratio", r"it returned a tensor of shape \[6\]$"),
        ("(-advantage * ratio).mean(), ratio > high", r"returned a tensor of shape \[\], a tensor of shape \[6\]"),
        ("-advantage * ratio, 0", r"a tensor of shape \[6\], a int"),
        ("-advantage * ratio.detach(), ratio > high", "no gradient; logprob or ratio was detached"),
        ("-advantage * ratio * float('nan'), ratio > high", "it returned .nan, .* for finite log-probabilities"),
        ("-advantage * ratio / 'a', ratio > high", "TypeError: unsupported operand"),
    ],
)
def test_what_no_loss_may_return_is_found_before_training(result: str, said: str, made: Any) -> None:
    with pytest.raises(ConfigError, match=f"mine: .*{said}"):
        try_out(made(result))


@pytest.mark.parametrize("result", ["-advantage * ratio.clamp(max=high), ratio > high", "-logprob, entropy > row"])
def test_a_sound_loss_passes(result: str, made: Any) -> None:
    settings = made(result)
    assert settings.component.status == "user", "others are not tried"
    try_out(settings)
