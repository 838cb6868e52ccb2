"""Components from a user's own file, by command: listed, credited with, and refused where they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.recorded_runs import write_run

from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.estimators.gigpo import gigpo
from agentgym.credit.table import TurnTable
from agentgym.credit.trial import check_own_components
from agentgym.endpoint.harness import HARNESSES
from agentgym.errors import ConfigError
from agentgym.evals.policies import POLICIES
from agentgym.rollout.strategies.component import REPLAYS
from agentgym.scoring.component import SCORERS
from agentgym.trainers.config.columns import check_columns
from agentgym.trainers.data.columns import COLUMNS
from agentgym.trainers.engines.component import ENGINES
from agentgym.trainers.recipes import RECIPES, describe_recipes, recipe

Command = Callable[..., Any]

LEAVE_OUT = """
from dataclasses import dataclass

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import returns_to_go
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.plugins import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOutOptions(Options):
    kind: str = "leave_out"
    scale: float = 1.0


@estimator("leave_out", paper="ours", granularity="turn")
def leave_out(table: TurnTable, gamma: float, options: LeaveOutOptions):
    returns = returns_to_go(table, gamma)
    return RESULT
"""
GOOD = "TurnAdvantages(advantage=options.scale * (returns - returns.mean()), return_to_go=returns)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of an estimator."""
    path = tmp_path / "leave_out.py"
    path.write_text(LEAVE_OUT.replace("RESULT", GOOD))
    return path


OF_ALL_FAMILIES = '''
from agentgym.endpoint.harness import harness
from agentgym.evals.policies import policy
from agentgym.rollout.strategies.component import replay
from agentgym.scoring.component import scorer
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.columns import column
from agentgym.trainers.engines.component import engine
from agentgym.trainers.recipes import recipe


@engine("own")
@harness("own")
@policy("own")
@recipe("own")
@replay("own")
@scorer("own")
def own():
    """Return one of mine."""
    return TrainConfig()


@column("own", unit="turn")
def own_column(turn):
    return 1.0
'''
REGISTRIES: dict[str, Any] = {
    "--engines": ENGINES,
    "--harnesses": HARNESSES,
    "--policies": POLICIES,
    "--recipes": RECIPES,
    "--scorers": SCORERS,
    "--strategies": REPLAYS,
    "--columns": COLUMNS,
}


def test_each_family_is_listed_and_with_a_file_its_own_alone(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry in REGISTRIES.values():  # without what other tests have registered
        found = {name: one for name, one in registry._all().items() if one.module.startswith("agentgym.")}
        monkeypatch.setattr(registry, "_components", found)
    (tmp_path / "families.py").write_text(OF_ALL_FAMILIES)
    named = {option: {row["name"] for row in run("list", option, "--json").json} for option in REGISTRIES}
    assert {"torch", "vllm"} <= named["--engines"] and {"oracle", "random"} <= named["--policies"]
    assert named["--harnesses"] == {
        *("claude_code", "codex", "gemini_cli", "langgraph", "mini_swe_agent", "openai_agents", "opencode"),
        *("pydantic_ai", "qwen_code", "smolagents", "terminus_2", "command", "openai_loop", "sandbox_command"),
    }
    (tmp_path / "bare.py").write_text("")
    for option in REGISTRIES:
        assert "register none of these" in run("list", option, "bare.py").assert_one_line_error()
    for option in REGISTRIES:
        assert [row["name"] for row in run("list", option, "families.py", "--json").json] == ["own"]
        assert "own" in run("list", option, "families.py").out


def test_recorded_rollouts_are_credited_by_a_file(run: Command, file: Path) -> None:
    write_run(Path("rooms"), CreditConfig(estimator="gigpo", gamma=0.9))
    value = run("credit", "rooms", "--estimator", f"{file.name}:leave_out,grpo", "--json").json
    assert [row["name"] for row in value["estimators"]] == [f"{file.name}:leave_out", "grpo"]
    doubled = run(
        "credit", "rooms", "--estimator", f"{file.name}:leave_out", "--set", "credit.options.scale=2", "--json"
    ).json
    ratio = doubled["estimators"][0]["advantage_std"] / value["estimators"][0]["advantage_std"]
    assert ratio == pytest.approx(2)
    assert "unknown estimator 'leave_in'" in run("credit", "rooms", "--estimator", "leave_in").assert_one_line_error()


def test_the_runs_own_estimator_has_a_short_name(run: Command, file: Path) -> None:
    write_run(Path("own"), CreditConfig(estimator=f"{file.name}:leave_out"))
    done = run("credit", "own", "--estimator", "leave_out", "--trust", "--json")
    assert done.code == 0, done.err
    assert done.json["estimators"][0]["largest_gap"] == 0


def test_files_of_ones_own_are_listed(run: Command, file: Path) -> None:
    for reference in (file.name, f"{file.name}:leave_out"):
        rows = run("list", "--credit", reference, "--json").json
        assert {row["status"] for row in rows} == {"user"}, "one's own are not lost among agentgym's"
        (row,) = (row for row in rows if row["name"] == "leave_out")
        assert (row["class"], row["status"], row["paper"]) == ("estimator", "user", "ours")
    assert "can be listed only with --credit" in run("list", file.name).assert_one_line_error()
    write_run(Path("listed"), CreditConfig(estimator="grpo"))
    missing = run("credit", "listed", "--estimator", f"{file.name}:leave_it").assert_one_line_error()
    assert "registers no estimator 'leave_it', only leave_out" in missing
    assert "no file 'gone.py'" in run("list", "--credit", "gone.py").assert_one_line_error()


def test_a_recipe_that_cannot_be_made_does_not_hide_the_others() -> None:
    @recipe("broken")
    def broken() -> int:
        return 3

    rows = {facts.name: facts for facts in describe_recipes()}
    assert "returned int, expected a TrainConfig" in rows["broken"].summary and rows["tiny"].envs


def test_recipes_are_listed_with_a_line_each(run: Command) -> None:
    rows = {row["name"]: row for row in run("list", "--recipes", "--json").json}
    assert rows["mixture"]["envs"][0] == "agentgym/Household-v0" and len(rows["mixture"]["envs"]) == 4
    assert rows["smollm2-wiki"]["model"] == "smollm2" and "layers" in rows["tiny"]["model"]
    own = [rows[name] for name in ("tiny", "finetune", "household-demo", "searchqa-qwen3-4b", "kuhn", "igpo")]
    assert all(row["summary"] and row["envs"] for row in own)  # other tests register recipes of theirs
    assert "tiny" in run("list", "--recipes").out
    assert "agentgym list --recipes" in run("train", "--dry-run").assert_one_line_error()


@pytest.mark.parametrize("options", [{"scale": 2.0}, {"kind": "leave_out", "scale": 2.0}], ids=["bare", "by name"])
def test_options_may_be_a_mapping(file: Path, options: dict[str, Any]) -> None:
    made: Any = CreditConfig(estimator=f"{file}:leave_out", options=options).options
    assert (made.kind, made.scale) == (f"{file}:leave_out", 2.0)


def test_wrong_options_are_refused(file: Path) -> None:
    for options, said in (
        ({"scale": "x"}, r"options\.scale: .* got 'x'"),
        ({"scales": 1.0}, r"options\.scales"),
        ({"kind": "gigpo"}, "options are those of 'gigpo', and the estimator is"),
    ):
        with pytest.raises(ConfigError, match=said):
            CreditConfig(estimator=f"{file}:leave_out", options=options)
    with pytest.raises(ConfigError, match="has no settings of its own"):
        CreditConfig(estimator="rloo", options={"scale": 1.0})


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("returns", "returned ndarray, expected agentgym.credit.table.TurnAdvantages"),
        ("TurnAdvantages(advantage=returns[:1], return_to_go=returns)", r"advantage of shape \(1,\), expected \(7,\)"),
        ("TurnAdvantages(advantage=returns / 0, return_to_go=returns)", r"returned advantage (inf|nan) for row \d"),
    ],
)
def test_what_no_estimator_may_return_is_found_before_training(
    run: Command, file: Path, result: str, said: str
) -> None:
    file.write_text(LEAVE_OUT.replace("RESULT", result))
    with np.errstate(all="ignore"), pytest.raises(ConfigError, match=said):
        check_own_components(CreditConfig(estimator=f"{file}:leave_out"))
    for dry_run in ([], ["--dry-run"]):
        done = run("train", "tiny", "env.id=agentgym/Maze-v0", f"credit.estimator={file.name}:leave_out", *dry_run)
        assert "estimator 'leave_out' returned" in done.assert_one_line_error()
    assert not list(Path("runs").glob("*/metrics.jsonl"))


def test_a_dry_run_tries_components_that_read_columns_and_parts_of_the_loss(run: Command, tmp_path: Path) -> None:
    Path("late.py").write_text(
        "from agentgym.credit.component import modulator\n"
        "@modulator('late', paper='ours', columns=('entropy', 'parent'))\n"
        "def late(table, advantage): return advantage\n"
    )
    Path("flat.py").write_text(
        "from agentgym.trainers.losses.component import regulariser\n"
        "@regulariser('flat', paper='ours')\ndef flat(logprob): return logprob.sum()\n"
    )
    for setting, said in (
        ('credit.modulators=[{"kind": "late.py:late"}]', "returned ndarray, expected agentgym.credit.parts.Modulated"),
        ('loss.regularisers=[{"kind": "flat.py:flat"}]', "regulariser flat: expected a number for each token"),
    ):
        assert said in run("train", "tiny", setting, "--dry-run").assert_one_line_error()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("credit.estimator=empg", "unknown estimator 'empg': it is a modulator"),
        ('credit.modulators=[{"kind": "rae"}]', "unknown modulator 'rae': it is an estimator"),
        ('loss.regularisers=[{"kind": "token_tis"}]', "unknown regulariser 'token_tis': it is a correction"),
        ("loss.kind=grpo", "unknown policy loss 'grpo': it is an estimator"),
    ],
)
def test_a_name_of_another_family_is_told(run: Command, setting: str, said: str) -> None:
    assert said in run("train", "tiny", setting, "--dry-run").assert_one_line_error()


def test_an_estimator_of_ones_own_on_plain_arrays(file: Path) -> None:
    table = TurnTable.from_lists(
        rewards=[[0, 1], [0]], states=[["a", "b"], ["a"]], group_of_trajectory=[0, 0]
    ).with_parts(outcome=("outcome", [[0, 1], [0]]))
    result = credit_turns(table, CreditConfig(estimator=f"{file}:leave_out", gamma=1.0))
    assert result.advantage.tolist() == pytest.approx([1 / 3, 1 / 3, -2 / 3])


def test_what_an_estimator_says_of_itself_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "leave_out.py"
    for told, said in (
        ('granularity="trajectory"', r"leave_out' gives turns of one episode different .* granularity='turn'"),
        ('granularity="turns"', "unknown granularity 'turns'; did you mean 'turn'"),
    ):
        path.write_text(LEAVE_OUT.replace('granularity="turn"', told).replace("RESULT", GOOD))
        with pytest.raises(ConfigError, match=said):
            check_own_components(CreditConfig(estimator=f"{path}:leave_out"))
    path.write_text(LEAVE_OUT.replace('granularity="turn"', 'columns=("entropie",)').replace("RESULT", GOOD))
    with pytest.raises(ConfigError, match="unknown column 'entropie'; did you mean 'entropy'"):
        check_columns(CreditConfig(estimator=f"{path}:leave_out"))


def test_plain_arrays_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"rewards\[1\]\[0\] is nan, expected a finite number"):
        TurnTable.from_lists(rewards=[[0.0], [float("nan")]], group_of_trajectory=[0, 0])
    table = TurnTable.from_lists(rewards=[[0.0], [1.0]], group_of_trajectory=[0, 0])
    with pytest.raises(ConfigError, match="unknown norm 'mean'; did you mean 'mean_norm'"):
        gigpo(table, norm="mean")
