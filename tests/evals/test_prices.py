"""Cost in money: prices as they are given, what is counted, and what is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.errors import ConfigError, RunStoppedError, UsageError
from agentgym.evals.budget import Budget
from agentgym.evals.prices import Price, Prices, count_tokens, read_prices, saved_prices
from agentgym.types import Completion, FinishReason, Message, Segment, Status, Task, Trajectory, Turn, Usage


def episode(*turns: Turn) -> Trajectory:
    task = Task(id="t", split="test", seed=0)
    return Trajectory(task=task, env_id="x", status=Status.COMPLETED, segments=(Segment(turns),), seed=0)


def asked(*usage: Usage | None) -> Trajectory:
    return episode(*(Turn(index=at, action=Message("assistant", "x"), usage=one) for at, one in enumerate(usage)))


def test_cached_tokens_have_their_own_price() -> None:
    counted = count_tokens(asked(Usage(1000, 10, 400), Usage(2000, 20)))
    assert counted == {"num_tokens": 30, "num_prompt_tokens": 3000, "num_cached_tokens": 400, "has_tokens": True}
    assert Price(input=2, output=10, cached_input=1).cost(counted) == pytest.approx((2600 * 2 + 400 + 300) / 1e6)
    assert Price(input=2, output=10).cost(counted) == pytest.approx((3000 * 2 + 300) / 1e6)


def test_sampled_ids_are_counted_as_they_were_added() -> None:
    sampled = Completion(token_ids=(1, 2), logprobs=(0.0, 0.0), policy_versions=(0, 0), finish_reason=FinishReason.STOP)
    turn = Turn(index=0, action=Message("assistant", "x"), prompt_ids=(5, 6, 7), completion=sampled)
    assert Price(input=1e6, output=1e6).cost(count_tokens(episode(turn, turn))) == 10.0


def test_what_is_not_known_has_no_cost() -> None:
    price = Price(input=1, output=1)
    assert price.cost(count_tokens(asked(Usage(5, 5), None))) is None, "an endpoint that counted one turn of two"
    assert Prices({"large": price}).of("openai:http://h/v1?model=small") is None
    assert Prices({"large": price}).of("openai:http://h/v1?model=large") == price


def test_a_file_of_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text("[large]\ninput = 2.5\ncached_input = 0.5\noutput = 10\n\n[mine]\ninput = 0\noutput = 0.1\n")
    prices = read_prices(str(path))
    assert prices.of("best:openai:http://h/v1?model=large,by=vote") == Price(input=2.5, cached_input=0.5, output=10)
    assert prices.of("runs/a/mine") == Price(input=0, output=0.1)
    assert prices.of("oracle") is None
    assert read_prices("1,0.5,2").of("anything") == Price(input=1, cached_input=0.5, output=2)


@pytest.mark.parametrize("given", ["1", "1,2,3,4", "a,b", "none.toml", "-"])
def test_prices_that_are_none(given: str) -> None:
    with pytest.raises(UsageError, match="expected prices per million tokens as IN,OUT"):
        read_prices(given)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\ninput = 1\n", "output"),
        ("[a]\ninput = 1\noutput = -1\n", "output"),
        ("[a]\ninput = 1\noutput = 1\nprompt = 2\n", "prompt"),
        ("a = 1\n", "expected a table with input and output"),
        ("", "expected a table of prices"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_prices(str(path))


def test_prices_from_python(tmp_path: Path) -> None:
    from agentgym import evaluate

    result = evaluate("agentgym/Household-v0", "oracle", episodes=1, prices="1,2", run_dir=tmp_path / "run")
    assert result.summary.cost is None, "a script has no tokens"
    assert saved_prices(tmp_path / "run").of("anything") == Price(input=1, output=2)


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(ConfigError, match="input"):
        read_prices("-1,2")


def test_a_budget_of_money() -> None:
    budget = Budget(cost=0.001, go_on="again")
    spend = budget.at(Price(input=0, output=100))
    budget.count(0.0006, 6)
    spend(asked(Usage(10, 6)))
    budget.count(0.0004, 4)
    with pytest.raises(RunStoppedError, match=r"budget of --max-cost 0.001 is spent after 2 episodes.*go on: again"):
        spend(asked(Usage(10, 4)))
    free = Budget(cost=0.001).at(None)
    for _ in range(3):
        free(asked(None))
    with pytest.raises(RunStoppedError, match="reports no token counts"):
        Budget(cost=1.0).at(Price(input=1, output=1))(asked(None))
