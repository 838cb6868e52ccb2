"""Information gain's log-probabilities: which contexts, which tokens, and two ways that must agree."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit import TESTKIT
from testkit.made_groups import a_task, group, trajectory, turn

from agentgym.credit.columns import turn_table
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.shapers.information_gain import InformationGainOptions, information_gain
from agentgym.errors import ConfigError
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, TrainConfig
from agentgym.trainers.critics.columns import ColumnMaker
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.model import load_model
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run
from agentgym.trainers.scoring.answers import (
    AnswerScores,
    Window,
    check_references,
    reference,
    score_answers,
    windows,
)
from agentgym.trainers.train import train
from agentgym.types import FinishReason, Message, Status, TrajectoryGroup

TEXTS = ["say hello there!", "say hello", "look around", "the word is red", "<answer> blue </answer>"] * 40
TOKENIZER = train_tokenizer(TEXTS, 400)
RENDERER = ChatRenderer(TOKENIZER, ChatConfig(codec="compact"))
TEMPLATE = "<answer>\n{answer}\n</answer>"


@pytest.fixture(scope="module")
def model() -> Any:
    """A network whose attention looks around: large random weights."""
    return build_model(TOKENIZER, ModelConfig(hidden_size=64, num_layers=2, head_dim=16, initializer_range=0.3), 3)


def ids(text: str) -> list[int]:
    encoded: list[int] = TOKENIZER.encode(text)
    return encoded


ACT, END = ids("<|act|>"), ids("<|end|>")


def questions() -> tuple[TrajectoryGroup, ...]:
    """Episodes of one and two windows, whole and cut, two tasks with one and three references."""
    opening = ids("Find the word.") + ACT
    first = a_task("one", answers=["red"])
    second = a_task("three", answers=["hello", "a black cat", "é"])
    nothing = (Message("user", "You see nothing."),)
    look = ids("look around") + END
    return (
        group(
            trajectory(
                [turn(opening, look), turn(ids("Nothing.") + ACT, look), turn(ids("the word is red") + ACT, look)],
                task=first,
            ),
            trajectory([turn(opening, look, replies=nothing)], task=first, status=Status.TRUNCATED_TURNS),
            trajectory([turn(opening, ids("say"))], task=first, status=Status.ENV_ERROR),
        ),
        group(
            trajectory(
                [turn(opening, look), turn(ids("and on") + ACT, look)],
                [turn(ids("So far: nothing.") + ACT, look), turn(ids("hello there") + ACT, look)],
                task=second,
            ),
            trajectory([turn(opening, look)], task=second, status=Status.TRUNCATED_TOKENS),
            trajectory(task=second, status=Status.TRUNCATED_TOKENS),
            ordinal=1,
        ),
    )  # fmt: skip


def scored(model: Any, scoring: str, template: str = TEMPLATE, tokens: int = 8192) -> AnswerScores:
    return score_answers(
        model, questions(), RENDERER, template=template, scoring=scoring, tokens_per_microbatch=tokens  # type: ignore[arg-type]
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- contexts


def test_there_is_a_context_before_every_turn_and_one_after_a_cut() -> None:
    whole, cut = questions()[0].valid
    (window,) = windows(whole, RENDERER)
    first, second, third = (each.prompt_ids for each in whole.turns)
    look = whole.turns[0].completion.token_ids
    assert window == Window(
        first + look + second + look + third,
        (len(first), len(first + look + second), len(first + look + second + look + third)),
    )
    (after,) = windows(cut, RENDERER)
    rest = after.token_ids[after.ends[0] + len(look) :]
    assert TOKENIZER.decode(list(rest)) == "You see nothing.<|act|>", "the end of the turn is there already"
    unended = replace(cut.turns[0].completion, token_ids=look[:-1], logprobs=(-1.0,) * (len(look) - 1),
                      policy_versions=(0,) * (len(look) - 1), finish_reason=FinishReason.LENGTH)  # fmt: skip
    longest = trajectory([replace(cut.turns[0], completion=unended)], status=Status.TRUNCATED_TURNS)
    assert windows(longest, RENDERER)[0].token_ids == after.token_ids, "the end of the turn is added"


def test_shapes_are_those_the_credit_table_takes(model: Any) -> None:
    scores = scored(model, "batched")
    assert [level.shape for level in scores.logprobs] == [(3, 1), (2, 1), (4, 3), (1, 3), (0, 3)]
    assert [row.tolist() for row in scores.lengths][:1] == [[len(ids("red"))]]
    credit = CreditConfig(estimator="igpo", shapers=(InformationGainOptions(min_answer_tokens=1, gain_at_limit=True),))
    columns = {"answer_logprobs": scores.logprobs, "answer_lengths": scores.lengths}
    result = credit_groups(questions(), credit, columns=columns)
    assert result.diagnostics["info_gain_mismatches"] == 0
    gains = result.table.info_gain
    assert gains is not None
    assert np.isnan(gains).tolist() == [False, False, True, False, False, False, False, True, True]


def test_gains_telescope(model: Any) -> None:
    scores = scored(model, "packed")
    for mode in ("log_prob_diff", "prob_diff"):
        credit = CreditConfig(estimator="igpo", shapers=(InformationGainOptions(mode=mode, gain_at_limit=True),))
        result = credit_groups(questions(), credit, columns={"answer_logprobs": scores.logprobs})
        assert result.table.info_gain is not None
        for index, logprobs in enumerate(scores.logprobs[:4]):
            chosen = logprobs[:, logprobs[0].argmax()]
            chosen = np.exp(chosen) if mode == "prob_diff" else chosen
            gains = result.table.info_gain[result.table.trajectory == index]
            assert np.nansum(gains) == pytest.approx(chosen[-1] - chosen[0], abs=1e-12)


# --------------------------------------------------------------------------------------------------- answer tokens


def test_answer_tokens_are_found_by_characters() -> None:
    plain = reference(RENDERER, TEMPLATE, "red")
    assert str(TOKENIZER.decode([plain.token_ids[at] for at in plain.at])).strip() == "red"
    assert plain.at[-1] == len(plain.token_ids) - 1, "what comes after the answer is never read"
    merged = reference(RENDERER, "say {answer}!", "hello")
    whole = ids("say hello!")
    assert list(merged.token_ids) == whole[: len(merged.token_ids)]
    text = TOKENIZER.decode([merged.token_ids[at] for at in merged.at])
    assert "hello" in text and text != "hello", "this tokenizer merges across the border, and no character is lost"
    assert len(ids("say ")) + len(ids("hello")) != len(ids("say hello")), "so that counting tokens would be wrong"
    accented = reference(RENDERER, TEMPLATE, "é")
    assert len(accented.at) == 2, "both bytes of the letter count"


def test_the_mean_runs_over_answer_tokens_alone(model: Any) -> None:
    levels = scored(model, "batched").logprobs[2]
    episode = questions()[1].valid[0]
    engine = TorchEngine(model, num_slots=1, max_context_tokens=512)

    async def expected() -> list[list[float]]:
        rows = []
        for window in windows(episode, RENDERER):
            for end in window.ends:
                row = []
                for answer in episode.task.answers:
                    ref = reference(RENDERER, TEMPLATE, answer)
                    logprobs = await engine.score(window.token_ids[:end], ref.token_ids)
                    row.append(float(np.mean([logprobs[at] for at in ref.at])))
                rows.append(row)
        return rows

    np.testing.assert_allclose(levels, asyncio.run(expected()), atol=1e-4)


@pytest.mark.parametrize("template", [TEMPLATE, "{answer}"], ids=["in a template", "bare"])
@pytest.mark.parametrize("tokens", [8192, 40], ids=["one batch", "many"])
def test_packed_equals_batched(model: Any, template: str, tokens: int) -> None:
    packed, batched = (scored(model, scoring, template, tokens) for scoring in ("packed", "batched"))
    for one, other in zip(packed.logprobs, batched.logprobs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    eager = build_model(TOKENIZER, ModelConfig(hidden_size=64, num_layers=2, head_dim=16, initializer_range=0.3), 3)
    eager.set_attn_implementation("eager")
    for one, other in zip(scored(eager, "packed", template, tokens).logprobs, batched.logprobs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    spread = np.ptp([level[0, 0] for level in packed.logprobs if len(level)])
    assert spread > 0.1, "contexts matter"


def test_a_model_without_masks_of_its_own_is_refused_packing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(ConfigError, match=r"set columns\.scoring=batched"):
        scored(model, "packed")


# --------------------------------------------------------------------------------------------------------- refusals


def test_tasks_without_a_reference_are_refused() -> None:
    check_references([a_task(answers=["x"])])
    with pytest.raises(ConfigError, match=r"composition rule 10\): task 'b' has no data\['answers'\]"):
        check_references([a_task("a", answers="x"), a_task("b")])


def test_a_task_without_references_is_left_with_its_outcome(model: Any) -> None:
    bare = group(trajectory([turn(ids("Hi") + ACT, END), turn(ACT, END)]))
    scores = score_answers(
        model, [bare], RENDERER, template=TEMPLATE, scoring="packed", tokens_per_microbatch=100
    )  # fmt: skip
    assert scores.logprobs[0].shape == (2, 0)
    credit = CreditConfig(estimator="igpo", shapers=(InformationGainOptions(),))
    result = credit_groups([bare], credit, columns={"answer_logprobs": scores.logprobs})
    assert result.diagnostics["info_gain_too_short"] == 1


def test_the_template_holds_the_answer_once() -> None:
    with pytest.raises(ConfigError, match=r"hold \{answer\} once"):
        replace(TrainConfig(recipe="x", env=EnvConfig(id="x")).columns, answer_template="answer")


# ------------------------------------------------------------------------------------------------ the whole way


def test_the_turn_that_brings_the_answer_gets_the_credit(tmp_path: Path) -> None:
    """A model that learnt to repeat what it was told: the gain is where it was told."""
    config = replace(
        load_recipe("tiny"),
        env=EnvConfig(id=f"{TESTKIT / 'clue_env.py'}:Clue-v0"),
        model=ModelConfig(hidden_size=64, num_layers=2, head_dim=16, vocab_size=320, max_context_tokens=160),
        sft=SftConfig(num_demos=1200, num_epochs=1, batch_size=4),
        num_steps=0,
        credit=CreditConfig(estimator="igpo", shapers=(InformationGainOptions(),)),
        eval=EvalConfig(num_episodes=1),
    )
    config = replace(config, columns=replace(config.columns, answer_template="say: {answer}"))
    train(config, tmp_path / "run")
    run = Run(config, tmp_path)
    trained, _ = load_model(tmp_path / "run" / "model")
    run.model.load_state_dict(trained.state_dict())
    asyncio.run(run.engine.update_weights(1))
    tasks = list(enumerate(run.envs[0].train_tasks[960:972]))
    groups = asyncio.run(
        run_groups(tasks, run.envs[0].pool, run.make_agent(run.envs[0]), GroupConfig(group_size=2, num_envs=8), seed=0)
    )
    made = ColumnMaker(config, run.model, run.renderer).make(groups)
    table = turn_table(groups).with_columns(**made.columns)
    gains = information_gain(table).table.info_gain
    assert gains is not None
    turns = [each for g in groups for episode in g.valid for each in episode.turns]
    tells = np.array([any("The word is" in reply.text for reply in each.replies) for each in turns])
    assert tells.sum() >= 12 and (~tells & ~np.isnan(gains)).sum() >= 8
    assert gains[tells].mean() > 1.0
    assert gains[tells].min() > np.nanmax(gains[~tells])
