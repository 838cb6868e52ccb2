"""Settings that Python code makes by keyword: keys that do not exist are refused with the names of similar ones."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass
from typing import Any, cast

import pytest

from agentgym.credit.component import ESTIMATORS, SHAPERS
from agentgym.credit.config import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError, UnknownNameError
from agentgym.plugins import Options
from agentgym.rollout.request import EpisodeLimits
from agentgym.sandbox import Limits
from agentgym.settings import Settings
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.trl.settings import CreditSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOptions(Options):
    kind: str = "own"
    margin: float = 0.0


def parts(settings: Any) -> list[type]:
    """Return the class of a configuration and those of the configurations in it."""
    fields = [getattr(settings, field.name) for field in dataclasses.fields(settings)]
    inner = [kind for value in fields if dataclasses.is_dataclass(value) for kind in parts(value)]
    return [type(settings), *inner]


CLASSES = [
    *dict.fromkeys(parts(load_recipe("tiny"))),
    *(CreditSettings, EpisodeLimits, Limits, SamplingParams),
    *(part.options for registry in (ESTIMATORS, SHAPERS) for part in registry.values() if part.options),
    OwnOptions,
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_configuration_refuses_a_key_by_name(kind: Any) -> None:
    assert issubclass(kind, Settings)
    with pytest.raises(UnknownNameError, match=f"unknown key of {kind.__name__} 'nokey'"):
        kind(nokey=1)


def test_similar_keys_are_named() -> None:
    with pytest.raises(UnknownNameError, match="unknown key of CreditConfig 'gama'; did you mean 'gamma'"):
        cast(Any, CreditConfig)(gama=1)
    with pytest.raises(UnknownNameError, match="unknown key of OwnOptions 'margn'; did you mean 'margin'"):
        cast(Any, OwnOptions)(margn=1)
    with pytest.raises(UnknownNameError, match="did you mean 'gamma'"):
        cast(Any, dataclasses.replace)(CreditConfig(), gama=1)
    with pytest.raises(ConfigError, match=r"CreditConfig takes its keys by name, as in CreditConfig\(estimator=\.\.\."):
        cast(Any, CreditConfig)("grpo")
    with pytest.raises(ConfigError, match="TrainConfig needs recipe, env"):
        cast(Any, TrainConfig)()


def test_a_dict_is_no_configuration_of_its_own() -> None:
    tiny = load_recipe("tiny")
    with pytest.raises(ConfigError, match=r"env is \{'id': 'Guess-v0'\}, expected EnvConfig\("):
        dataclasses.replace(tiny, env=cast(Any, {"id": "Guess-v0"}))
    with pytest.raises(ConfigError, match=r"credit is \{.*\}, expected CreditConfig"):
        dataclasses.replace(tiny, credit=cast(Any, {"estimator": "grpo"}))
    with pytest.raises(ConfigError, match=r"model\.lora is \{.*\}, expected LoraSettings"):
        dataclasses.replace(tiny.model, lora=cast(Any, {"rank": 4}))


def test_settings_are_copied_and_pickled() -> None:
    made = OwnOptions(margin=2.0)
    assert pickle.loads(pickle.dumps(made)) == made == dataclasses.replace(OwnOptions(), margin=2.0)
