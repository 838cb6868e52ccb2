"""A component of each family of the loss from one file of a user, with nothing else touched, in a step of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from testkit import counting_runs

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.checkpoint import load_latest_checkpoint
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.train import train

PACS = """
import torch
from agentgym.trainers.losses.component import policy_loss
from agentgym.trainers.losses.ratios import sum_per_unit

def couple(logprob, logprob_old, reward, trajectory, group, loss_weight):
    # the loss of a trajectory is the cross-entropy of its reward and the sigmoid of its score above the others' mean
    first = torch.ones_like(trajectory, dtype=torch.bool)
    first[1:] = trajectory[1:] != trajectory[:-1]
    score = sum_per_unit(logprob - logprob_old, trajectory)[first].requires_grad_()
    of_group = torch.unique(group[first], return_inverse=True)[1]
    sizes = torch.bincount(of_group)[of_group]
    others = (sum_per_unit(score, of_group) - score) / (sizes - 1).clamp(min=1)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(score - others, reward[first], reduction="none")
    (slope,) = torch.autograd.grad(losses.mean(), score)
    place = torch.cumsum(first, 0) - 1
    share = 1 / torch.bincount(place).to(logprob)[place] / len(losses)
    return {"slope": slope[place] / loss_weight, "value": losses.detach()[place] * share / loss_weight}

@policy_loss("coupled", paper="Implicit Actor Critic Coupling", prepare=couple, clip_low=None, clip_high=None)
def coupled(logprob, slope, value):
    return value + slope * (logprob - logprob.detach()), torch.zeros_like(logprob, dtype=torch.bool)
"""

TOP_P_ENTROPY = """
from dataclasses import dataclass
from agentgym.plugins import Options
from agentgym.trainers.losses.component import regulariser

@dataclass(frozen=True, slots=True, kw_only=True)
class TopPOptions(Options):
    kind: str = "top_p_entropy"
    top_p: float = 0.9
    coef: float = 0.01

@regulariser("top_p_entropy", paper="ours", phase="vocabulary", sign=-1.0)
def top_p_entropy(log_distribution, advantage, options: TopPOptions):
    assert log_distribution.ndim == 2 and len(advantage) == len(log_distribution)
    ordered = log_distribution.sort(-1, descending=True).values
    inside = ordered.exp().cumsum(-1) - ordered.exp() < options.top_p
    kept = ordered.masked_fill(~inside, float("-inf")).log_softmax(-1)
    return -(kept.exp() * kept.masked_fill(~inside, 0.0)).sum(-1)
"""

MEASURED = """
import torch
from agentgym.trainers.losses.component import policy_loss

def own_and_best(log_distribution, token, advantage):
    assert len(token) == len(log_distribution) == len(advantage)
    return torch.stack([log_distribution.gather(-1, token[:, None])[:, 0], log_distribution.amax(-1)], -1)

def before(logprob, measured):
    assert torch.allclose(measured[:, 0], logprob) and not measured.requires_grad
    return {"behind": measured[:, 1] - measured[:, 0]}

@policy_loss("surer", paper="ours", measure=own_and_best, prepare=before, clip_low=None, clip_high=None)
def surer(logprob, advantage, measured, behind):
    assert torch.allclose(measured[:, 0], logprob) and measured.requires_grad and (behind >= 0).all()
    return -advantage * (measured[:, 0] - 0.5 * measured[:, 1]) / (1 + behind), behind > 9
"""

COLUMNS = """
import numpy as np
from agentgym.trainers.data.columns import column
from agentgym.trainers.losses.component import correction, policy_loss, regulariser, token_mask

@column("num_calls", unit="turn", paper="ours")
def num_calls(turn):
    return len(turn.action.calls)

@column("rank", unit="trajectory", phase="step", paper="ours")
def rank(reward, group):
    return [sum((reward > own) & (group == of)) for own, of in zip(reward, group)]

@column("place", unit="token", paper="ours")
def place(turn):
    return np.arange(len(turn.completion.token_ids))

@column("gap", unit="token", phase="update", paper="ours")
def gap(logprob_old, logprob_rollout):
    return (logprob_old - logprob_rollout).detach()

@policy_loss("ranked", paper="ours", clip_low=None, clip_high=None)
def ranked(ratio, advantage, rank, reward, group_size):
    assert (rank >= 0).all() and (group_size > 0).all() and (reward >= 0).all()
    return -advantage * ratio / (1 + rank), rank > 0

@correction("near", paper="ours")
def near(log_rho_N, gap, num_calls):
    assert (num_calls >= 0).all()
    return (-gap.abs()).exp()

@token_mask("late", paper="ours", effect="leave_out")
def late(place):
    return place > 30

@regulariser("tight", paper="ours")
def tight(logprob, logprob_ref, place):
    return (logprob - logprob_ref).square() / (1 + place)
"""

MEMORY = """
from agentgym.trainers.losses.component import policy_loss

def remember(reward, memory):
    steps, total = memory.get("steps", 0) + 1, memory.get("total", 0.0) + float(reward.mean())
    return {"baseline": total / steps, "lr_scale": 1 / steps}, {"steps": steps, "total": total}

@policy_loss("against_mean", paper="ours", prepare=remember, clip_low=None, clip_high=None)
def against_mean(logprob, reward, baseline):
    return -(reward - baseline) * logprob, logprob > 0
"""

IMITATE = """
from dataclasses import dataclass
import numpy as np
from agentgym.plugins import Options
from agentgym.trainers.data.weighted_row import WeightedRow
from agentgym.trainers.losses.component import auxiliary_loss

@dataclass(frozen=True, slots=True, kw_only=True)
class ImitateOptions(Options):
    kind: str = "imitate"
    coef: float = 0.5
    least: float = 0.5

@auxiliary_loss("imitate", paper="ours")
def imitate(episodes, renderer, options: ImitateOptions):
    # the sampled tokens of good episodes: what rejection sampling would fine-tune on
    good = [segment for one in episodes if one.reward >= options.least for segment in one.segments]
    masks = [np.asarray(segment.loss_mask, dtype=bool) for segment in good]
    return [WeightedRow(one.token_ids, mask.astype(np.float32), mask) for one, mask in zip(good, masks)]
"""


def config(*overrides: str, **changes: Any) -> TrainConfig:
    """Return a run of two steps on a model that counts a little."""
    made = counting_runs.config(num_steps=2, eval=EvalConfig(num_episodes=2), **changes)
    return apply_overrides(made, ["zero_variance_filter=off", *overrides])


def trained(made: TrainConfig, run_dir: Path) -> list[dict[str, Any]]:
    """Train, and return the metrics of the steps of RL."""
    train(made, run_dir)
    return [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """A function that writes a file of one component's and returns its path."""

    def written(text: str, name: str = "mine.py") -> Path:
        (path := tmp_path / name).write_text(text)
        return path

    return written


def test_a_loss_over_groups(file: Any, tmp_path: Path) -> None:
    rows = trained(config(f"loss.kind={file(PACS)}:coupled", "loss.corrections=[]"), tmp_path / "run")
    assert len(rows) == 2 and rows[0]["grad_norm"] > 0
    assert rows[0]["loss"] == pytest.approx(0.6931, abs=0.05), "scores are 0 before the first update"


def test_the_gradient_of_a_loss_over_groups_ignores_the_split(file: Any, tmp_path: Path) -> None:
    kind = f"loss.kind={file(PACS)}:coupled"
    norms = [
        trained(config(kind, f"loss.tokens_per_microbatch={room}"), tmp_path / str(room))[0]["grad_norm"]
        for room in (300, 100_000)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_a_loss_of_the_whole_vocabulary_ignores_the_split(file: Any, tmp_path: Path) -> None:
    kind = f"loss.kind={file(MEASURED)}:surer"
    steps = [
        trained(config(kind, f"loss.tokens_per_microbatch={room}"), tmp_path / str(room)) for room in (300, 100_000)
    ]
    assert steps[0][0]["grad_norm"] > 0 and len(steps[0]) == 2
    for key in ("loss", "grad_norm"):
        assert steps[0][0][key] == pytest.approx(steps[1][0][key], rel=1e-4)


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        ("def m(log_distribution): return 1.0", "policy loss 'x'|loss x: expected a number for each token"),
        ("def m(log_distribution): return log_distribution[0]", "expected a number for each token"),
        ("def m(log_distribution): return 1 / 0", "loss 'x' failed: ZeroDivisionError"),
        ("def m(log_distribution, logprob): return logprob", "loss 'x' cannot read logprob: it is computed beside"),
        ("def m(log_distribution, unheard): return unheard", "unheard"),
    ],
)
def test_a_wrong_measure_is_named_before_anything_is_played(measure: str, said: str, file: Any, tmp_path: Path) -> None:
    text = "from agentgym.trainers.losses.component import policy_loss\n" + measure
    path = file(
        f"{text}\n@policy_loss('x', measure=m)\ndef x(logprob, measured): return logprob * measured, measured > 0\n"
    )
    with pytest.raises(ConfigError, match=said):
        trained(config(f"loss.kind={path}:x"), tmp_path / "run")
    assert not (tmp_path / "run" / "rollouts").exists()


def test_a_parameter_with_a_default_gets_in_the_trial_what_it_gets_in_training(file: Any, tmp_path: Path) -> None:
    path = file(
        "from agentgym.trainers.losses.component import policy_loss\n@policy_loss('x')\n"
        "def x(ratio, advantage, reward=None):\n    assert reward is None\n    return -advantage * ratio, ratio > 9\n"
    )
    assert len(trained(config(f"loss.kind={path}:x"), tmp_path / "run")) == 2


def test_a_loss_and_a_regulariser_of_one_name_have_memories_of_their_own(file: Any, tmp_path: Path) -> None:
    path = file(
        "from agentgym.trainers.losses.component import policy_loss, regulariser\n"
        "def count(reward, memory):\n    n = memory.get('n', 0) + 1\n    return {'n': n}, {'n': n}\n"
        "@policy_loss('mine', prepare=count)\n"
        "def one(ratio, advantage, n):\n    assert n < 3\n    return -advantage * ratio, ratio > 9\n"
        "@regulariser('mine', prepare=count)\n"
        "def two(logprob, n):\n    return logprob * 0 + n\n"
    )
    named = f'loss.regularisers=[{{"kind": "{path}:mine"}}]'
    rows = trained(config(f"loss.kind={path}:mine", named), tmp_path / "run")
    assert [row["mine"] for row in rows] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["loss.minibatch=tokens", "loss.num_updates=2"],
            "whole groups, which loss.minibatch=tokens splits",
        ),
        (
            ["loss.minibatch=rows", "loss.rows_per_update=2"],
            "whole groups, which loss.minibatch=rows splits",
        ),
        (
            ["credit.estimator=returns", 'loss.corrections=[{"kind": "vcpo", "baseline": "gradient"}]'],
            "vcpo takes the gradient of one trajectory at a time, and the loss .* compares the whole update",
        ),
    ],
)
def test_a_loss_of_whole_groups_is_not_split(settings: list[str], said: str, file: Any) -> None:
    with pytest.raises(ConfigError, match=said):
        config(f"loss.kind={file(PACS)}:coupled", *settings)
    with pytest.raises(ConfigError, match=said):
        config("loss.kind=gtpo", *settings)


def test_a_loss_of_whole_episodes_is_split_by_episodes_alone() -> None:
    assert config("loss.kind=ace", "loss.minibatch=tokens", "loss.num_updates=2").loss.num_updates == 2
    with pytest.raises(ConfigError, match="compares tokens of whole episodes"):
        config("loss.kind=ace", "loss.minibatch=rows", "loss.rows_per_update=2")


@pytest.mark.parametrize("family", ["correction", "token_mask"])
def test_a_measure_is_for_losses_and_regularisers(family: str, file: Any) -> None:
    path = file(
        f"from agentgym.trainers.losses.component import {family}\ndef m(log_distribution): return 1\n"
        f"@{family}('x', measure=m)\ndef x(advantage): return advantage\n"
    )
    key = {"correction": "corrections", "token_mask": "token_masks"}[family]
    with pytest.raises(ConfigError, match="a measure is for policy losses"):
        config(f'loss.{key}=[{{"kind": "{path}:x"}}]')


def test_a_term_over_the_vocabulary(file: Any, tmp_path: Path) -> None:
    part = f'{{"kind": "{file(TOP_P_ENTROPY)}:top_p_entropy", "top_p": 0.8}}'
    rows = trained(config(f"loss.regularisers=[{part}]"), tmp_path / "run")
    assert all(0 < row["top_p_entropy"] < row["entropy"] for row in rows)


def test_columns_of_ones_own_and_a_token_mask(file: Any, tmp_path: Path) -> None:
    path = file(COLUMNS)
    made = config(
        f"loss.kind={path}:ranked",
        f'loss.corrections=[{{"kind": "{path}:near"}}]',
        f'loss.token_masks=[{{"kind": "{path}:late"}}]',
        f'loss.regularisers=[{{"kind": "{path}:tight"}}]',
    )
    assert {one.name for one in made.loss.columns()} == {
        *("rank", "reward", "group", "group_size", "gap", "num_calls", "place")
    }
    rows = trained(made, tmp_path / "run")
    assert rows[-1]["tight"] > 0 and all(row["grad_norm"] > 0 for row in rows)
    assert all("changed/late" in row for row in rows)


def test_a_memory_of_ones_own_is_kept_with_checkpoints(file: Any, tmp_path: Path) -> None:
    kind = f"loss.kind={file(MEMORY)}:against_mean"
    whole = trained(config(kind, "checkpoint_every=1"), tmp_path / "whole")
    assert [row.get("lr_scale", 1.0) for row in whole] == [1.0, 0.5]
    found = load_latest_checkpoint(tmp_path / "whole")
    assert found is not None and found.plain["loss_memory"]["loss against_mean"]["steps"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@column('x', unit='turn')\ndef x(reward): ...", "in phase record a function takes turn, trajectory or group"),
        ("@column('x', unit='episode')\ndef x(turn): ...", "unknown unit 'episode'; .* .column 'x'."),
        ("@column('x', unit='trajectory')\ndef x(turn): ...", "takes each turn: take trajectory instead"),
        (
            "@column('x', unit='turn', phase='step')\ndef x(reward): ...",
            "in phase step the unit is group or traj",
        ),
        ("@column('x', unit='token', phase='update')\ndef x(): ...", "column 'x' takes nothing"),
    ],
)
def test_a_column_that_cannot_be_is_refused_where_it_is_declared(text: str, said: str, file: Any) -> None:
    path = file(f"from agentgym.trainers.data.columns import column\n{text}\n")
    with pytest.raises(ConfigError, match=said):
        config(f"loss.kind={path}:x")


def test_an_auxiliary_loss_over_tokens_of_the_steps_episodes(file: Any, tmp_path: Path) -> None:
    part = f'{{"kind": "{file(IMITATE)}:imitate", "least": 0.0}}'
    rows = trained(config("loss.weight=0", f"loss.auxiliaries=[{part}]"), tmp_path / "run")
    assert all(row["imitate/weight"] == 0.5 and row["grad_norm"] > 0 for row in rows)
    assert all(0 < row["imitate/loss"] < 10 for row in rows)
    beside = trained(config(f'loss.auxiliaries=[{part}, {{"kind": "echo"}}]'), tmp_path / "beside")
    assert all({"imitate/loss", "echo/loss"} <= row.keys() for row in beside)


NOTHING = """
import numpy as np
from agentgym.credit.component import estimator
from agentgym.credit.table import TurnAdvantages

@estimator("nothing", paper="ours")
def nothing(table):
    return TurnAdvantages(advantage=np.zeros(len(table)), return_to_go=np.zeros(len(table)))
"""


def test_lists_are_taken_for_arrays(file: Any, tmp_path: Path) -> None:
    text = IMITATE.replace("mask.astype(np.float32), mask", "mask.astype(float).tolist(), mask.tolist()")
    part = f'{{"kind": "{file(text)}:imitate", "least": 0.0}}'
    rows = trained(config(f"loss.auxiliaries=[{part}]"), tmp_path / "run")
    assert all(0 < row["imitate/loss"] < 10 for row in rows)


def test_an_auxiliary_loss_trains_on_groups_without_credit_however_they_are_split(file: Any, tmp_path: Path) -> None:
    credit = f"credit.estimator={file(NOTHING, 'credit.py')}:nothing"
    norms = []
    for room in (300, 100_000):
        made = config(credit, "zero_variance_filter=advantage", "loss.echo=0.5", f"loss.tokens_per_microbatch={room}")
        first = trained(made, tmp_path / str(room))[0]
        assert first["num_dropped_groups"] == made.groups_per_step and first["trained_tokens"] == 0
        norms.append(first["grad_norm"])
    assert norms[0] > 0 and norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("[1]", "auxiliary loss x: expected a list of WeightedRow, it returned a list"),
        ("None", "auxiliary loss x: expected a list of WeightedRow, it returned a NoneType"),
        ("[] / 2", "auxiliary loss x: TypeError"),
        ("[WeightedRow((1, 2), np.ones(3), np.ones(2))]", "a row has 2 tokens, 3 weights and 2 marks"),
        ("[WeightedRow((1, 2), np.array([1, np.nan]), np.ones(2))]", "weights that are not finite or below 0"),
        ("[WeightedRow((1, 2), [0, -1], [0, 1])]", "weights that are not finite or below 0"),
        ("[WeightedRow((1, 2.5), [0, 1], [0, 1])]", "a row is not made of numbers: TypeError"),
        ("[WeightedRow((1, 2), [0, 'x'], [0, 1])]", "a row is not made of numbers: ValueError"),
        ("[WeightedRow((1, 99999), [0, 1], [0, 1])] if episodes else []", "the token id 99999, which the tokenizer"),
        ("[one.unknown for one in episodes]", "AttributeError: .*made-up episodes: all kinds"),
        (
            "[] if not episodes else [max(one.reward for one in episodes if one.success)][:0]",
            "ValueError: .* .tried on made-up episodes: failures alone.",
        ),
        ("[] if not episodes else [][:min(1 // one.reward for one in episodes)]", "made-up episodes: all kinds"),
    ],
)
def test_what_an_auxiliary_loss_may_not_return_is_named(returned: str, said: str, file: Any, tmp_path: Path) -> None:
    path = file(
        "import numpy as np\n"
        "from agentgym.trainers.data.weighted_row import WeightedRow\n"
        "from agentgym.trainers.losses.component import auxiliary_loss\n"
        f"@auxiliary_loss('x')\ndef x(episodes): return {returned}\n"
    )
    with pytest.raises(ConfigError, match=said):
        trained(config(f'loss.auxiliaries=[{{"kind": "{path}:x"}}]'), tmp_path / "run")
    assert not (tmp_path / "run" / "rollouts").exists(), "tried at the start"


@pytest.mark.parametrize(
    ("family", "parameters", "said"),
    [
        (
            "auxiliary_loss",
            "episodes, logprob",
            "auxiliary loss 'x' cannot read logprob: an auxiliary loss reads the st",
        ),
        ("auxiliary_loss", "episodes, reward", "auxiliary loss 'x' cannot read reward"),
        ("correction", "log_rho_N, logprob", "correction 'x' cannot read logprob: a correction weighs by"),
        ("regulariser", "log_distribution", "log_distribution and phase='vocabulary' go together"),
        ("policy_loss", "log_distribution", "log_distribution and phase='vocabulary' go together"),
    ],
)
def test_what_a_component_cannot_read_is_said(family: str, parameters: str, said: str, file: Any) -> None:
    path = file(f"from agentgym.trainers.losses.component import {family}\n@{family}('x')\ndef x({parameters}): ...\n")
    keys = {"correction": "corrections", "regulariser": "regularisers", "auxiliary_loss": "auxiliaries"}
    with pytest.raises(ConfigError, match=said):
        config(f'loss.{keys[family]}=[{{"kind": "{path}:x"}}]' if family in keys else f"loss.kind={path}:x")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("@column('x', unit='turn')\ndef x(turn): return 'many'", "column 'x' returned 'many', expected a number"),
        (
            "@column('x', unit='token')\ndef x(turn): return [1.0]",
            "column 'x' returned .* expected .* numbers, one per tok",
        ),
        ("@column('x', unit='turn')\ndef x(turn): return 1 / 0", "column 'x' failed: ZeroDivisionError"),
        ("@column('x', unit='token', phase='update')\ndef x(y): return y", "unknown column 'y'"),
        ("@column('x', unit='token', phase='update')\ndef x(x): return x", "columns read each other: x -> x"),
        ("@column('x', unit='trajectory', phase='step')\ndef x(turn_reward): return 1", "is known per turn"),
        ("@column('x', unit='trajectory', phase='step')\ndef x(reward): return [1.0]", "numbers, one per trajectory"),
    ],
)
def test_what_a_column_may_not_return_is_named(declared: str, said: str, file: Any, tmp_path: Path) -> None:
    path = file(
        "from agentgym.trainers.data.columns import column\n"
        "from agentgym.trainers.losses.component import policy_loss\n"
        f"{declared}\n"
        "@policy_loss('reader', paper='ours', clip_low=None, clip_high=None)\n"
        "def reader(logprob, x): return -logprob * x, x > 1\n"
    )
    with pytest.raises(ConfigError, match=said):
        train(config(f"loss.kind={path}:reader"), tmp_path / "run")
    assert not (tmp_path / "run" / "rollouts").exists(), "tried at the start"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("1.0", "returned a float, expected a dict of values by name"),
        ("{'other': 1.0}", "nothing provides 'value'"),
        ("1 / 0", "prepare of loss 'odd' failed: ZeroDivisionError"),
        ("(reward.mul_(2), {'value': 1.0})[1]", "changes reward in place"),
        ("{'value': 1.0, 'lr_scale': float('nan')}", "returned lr_scale=nan, expected a factor"),
    ],
)
def test_a_prepare_is_tried_before_training(result: str, said: str, file: Any, tmp_path: Path) -> None:
    path = file(
        "from agentgym.trainers.losses.component import policy_loss\n"
        f"def before(reward): return {result}\n"
        "@policy_loss('odd', paper='ours', prepare=before, clip_low=None, clip_high=None)\n"
        "def odd(logprob, value): return -logprob * value, logprob > 0\n"
    )
    with pytest.raises(ConfigError, match=said):
        train(config(f"loss.kind={path}:odd"), tmp_path / "run")
    assert not (tmp_path / "run" / "groups").exists(), "nothing was played"


def test_a_memory_that_no_checkpoint_holds_is_refused_before_training(file: Any, tmp_path: Path) -> None:
    path = file(MEMORY.replace("float(reward.mean())", "reward.mean()"))
    with pytest.raises(ConfigError, match="prepare of loss 'against_mean' returned a memory of more than plain values"):
        train(config(f"loss.kind={path}:against_mean"), tmp_path / "run")
    assert not (tmp_path / "run" / "groups").exists(), "nothing was played"


THROUGH = """
from agentgym.trainers.data.columns import column
from agentgym.trainers.losses.component import correction, policy_loss, regulariser

@column("drift_of_token", unit="token", phase="update", paper="ours")
def drift_of_token(logprob_old, logprob_ref):
    return (logprob_old - logprob_ref).detach()

@column("now", unit="token", phase="update", paper="ours")
def now(logprob):
    return logprob.detach()

def before(drift_of_token):
    return {"mean_drift": float(drift_of_token.abs().mean())}

@policy_loss("drifting", paper="ours", prepare=before, clip_low=None, clip_high=None)
def drifting(logprob, advantage, drift_of_token, mean_drift):
    return -advantage * logprob * (1 + (drift_of_token.abs() > mean_drift)), drift_of_token > mean_drift

@correction("today", paper="ours")
def today(log_rho_N, now):
    return log_rho_N.exp()
"""


def test_what_a_column_reads_is_computed_for_it(file: Any, tmp_path: Path) -> None:
    made = config(f"loss.kind={file(THROUGH)}:drifting", "loss.corrections=[]")
    assert made.loss.needs_reference and made.loss.reads_before("logprob_ref")
    assert trained(made, tmp_path / "run")[-1]["clip_fraction"] > 0, "the policy moved away from its reference"


def test_what_a_component_cannot_read_it_cannot_read_through_a_column(file: Any) -> None:
    with pytest.raises(
        ConfigError, match="correction 'today' cannot read logprob: a correction weighs by the policies"
    ):
        config(f'loss.corrections=[{{"kind": "{file(THROUGH)}:today"}}]')


def test_a_column_may_not_take_a_name_of_the_trainer(file: Any) -> None:
    path = file("from agentgym.trainers.data.columns import column\n@column('ratio', unit='turn')\ndef x(turn): ...\n")
    with pytest.raises(ConfigError, match="column 'ratio' is one of the trainer's own; choose another name"):
        config(f"loss.kind={path}:x")
