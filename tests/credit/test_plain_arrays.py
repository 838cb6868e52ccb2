"""Credit as a library: what users pass from Python is taken as it is meant, or refused in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from testkit.credit_tables import bandits

from agentgym.credit.compose import CreditConfig
from agentgym.credit.estimators.gigpo import GigpoOptions, gigpo
from agentgym.credit.estimators.hgpo import hgpo
from agentgym.errors import ConfigError

config = cast(Callable[..., CreditConfig], CreditConfig)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: config(norm="std"), "norm must be one of mean_std_norm, mean_norm; got 'std'"),
        (lambda: config(statistics_unit="rows"), "statistics_unit must be one of turn, trajectory; got 'rows'"),
        (lambda: GigpoOptions(anchors=cast(Any, "same")), "gigpo: anchors must be one of exact, similarity; got"),
        (lambda: config(gamma="0.9"), "gamma must be a number between 0 and 1, got '0.9'"),
        (lambda: config(gamma=np.float32(1.5)), "gamma must be between 0 and 1, got 1.5"),
        (lambda: gigpo(bandits(1, 0), statistics_unit="rows"), "unknown statistics_unit 'rows'"),
        (lambda: hgpo(bandits(1, 0), norm="std"), "unknown norm 'std'"),
    ],
)
def test_settings_from_python_are_checked_as_those_of_the_command_line(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make()
