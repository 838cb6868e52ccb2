"""A user's strategies are tried at the start: their first call was that of step one, after the warm start."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.strategy_trial import try_strategies
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe

HEAD = """
from dataclasses import dataclass
from agentgym.plugins import Options
from agentgym.rollout.branch import Start
from agentgym.rollout.strategies.component import branching, budget, guidance, horizon, pruning, replay, task_source

@dataclass(frozen=True, slots=True, kw_only=True)
class Own(Options):
    kind: str = "mine"
    after: int = 2
    keep: int = 2

"""


def tried(folder: Path, key: str, family: str, parameters: str, returned: str) -> None:
    """Try a strategy of a file with this one line."""
    (folder / "mine.py").write_text(
        f"{HEAD}@{family}('mine', paper='ours', options=Own)\ndef mine({parameters}, options: Own): return {returned}\n"
    )
    strategy = f'strategy.{key}={{"kind": "{folder / "mine.py"}:mine"}}'
    made = apply_overrides(load_recipe("tiny"), ["env.id=agentgym/GuessNumber-v0", strategy])
    try_strategies(made.strategy, GroupConfig())


@pytest.mark.parametrize(
    ("key", "family", "parameters", "returned"),
    [
        ("tasks", "task_source", "positions, order", "[order(at) for at in positions]"),
        ("budget", "budget", "rates, group_size", "[group_size if rate in (None, 0.5) else 4 for rate in rates]"),
        ("budget", "budget", "rate, group_size", "group_size if rate == 0 else 0"),
        ("horizon", "horizon", "step", "5 + step"),
        ("guidance", "guidance", "rate, group_size", "(group_size // 2, 1) if rate == 0 else (0, 0)"),
        ("branching", "branching", "num_left", "[Start()] * num_left"),
        ("pruning", "pruning", "running", "list(range(len(running)))[:4]"),
        (
            "replay",
            "replay",
            "successes, num_stored",
            "(0, num_stored - 1) if num_stored and not any(successes) else None",
        ),
    ],
)
def test_sound_strategies_pass(key: str, family: str, parameters: str, returned: str, tmp_path: Path) -> None:
    tried(tmp_path, key, family, parameters, returned)


@pytest.mark.parametrize(
    ("key", "family", "parameters", "returned", "said"),
    [
        ("tasks", "task_source", "positions, num_tasks", "[num_tasks] * len(positions)", "task source 'mine' returned"),
        ("budget", "budget", "rates, group_size", "[int(group_size * rate) for rate in rates]", "budget 'mine' failed"),
        ("budget", "budget", "rates", "[8 if rate in (None, 0.5) else 0 for rate in rates]", "the size of each group"),
        ("budget", "budget", "rate", "int(1 / rate)", "budget 'mine' failed: ZeroDivisionError"),
        ("horizon", "horizon", "step", "step", "horizon 'mine' returned 0"),
        ("guidance", "guidance", "rate", "(1, 1) if rate < 0.5 else (0, 0)", "guidance 'mine' failed: TypeError"),
        ("branching", "branching", "num_left", "[Start()] * (num_left + 1)", "branching 'mine' returned"),
        ("pruning", "pruning", "running", "[len(running)]", "pruning 'mine' returned"),
        ("replay", "replay", "num_stored", "(0, num_stored)", "replay 'mine' returned"),
    ],
)
def test_errors_of_later_steps_are_found_at_the_start(
    key: str, family: str, parameters: str, returned: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as found:
        tried(tmp_path, key, family, parameters, returned)
    assert str(found.value).endswith("(tried on made-up groups)")
