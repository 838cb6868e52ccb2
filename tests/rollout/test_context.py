"""Context policies: what prompts hold, what is trained, and that what was sampled stays as it was sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from testkit.tokenizers_for_tests import HERMES, MISTRAL, THINKING, trained
from testkit.worlds import LongCounter

from agentgym.check.policies import ScriptedEngine
from agentgym.credit.columns import turn_table
from agentgym.credit.compose import CreditConfig, assign_credit
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.env.observations import as_observation
from agentgym.errors import ConfigError, UnknownNameError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import DemonstrationAgent, ModelAgent, ScriptedAgent
from agentgym.rollout.context import FULL, ContextConfig, check_turns_left
from agentgym.rollout.episode_notes import EpisodeNotes
from agentgym.rollout.loop import run_episode
from agentgym.rollout.memory import Exchange, remembered, summarised
from agentgym.rollout.record import GroupRecord, read_records, write_records
from agentgym.rollout.request import RolloutRequest
from agentgym.tool import tool
from agentgym.trainers.models.tiny import CHAT_TEMPLATE, train_tokenizer
from agentgym.trainers.reporting.metrics import MetricsLog
from agentgym.types import ImagePart, Message, Status, Task, TextPart, Trajectory, TrajectoryGroup

TASK = Task(id="t", split="train", seed=0)
WINDOW = 80


@cache
def compact() -> Any:
    """A tokenizer that knows the words of this world, as a run's own does."""
    phrases = (*summarising().phrases, *windowed(2).phrases, *ContextConfig(turns_left=True).phrases)
    return train_tokenizer(
        ["Count to 24.\n", "The count is 17.\n", "add: 1", "> add: 1\n", "counted on", *phrases] * 20, 500
    )


class Player:
    """Plays an environment with a scripted engine, which is asked for actions and for summaries."""

    def __init__(self, template: str = CHAT_TEMPLATE, said: str = "add: 1", summary: str = "counted on") -> None:
        self.tokenizer = compact() if template is CHAT_TEMPLATE else trained(template)
        self.renderer = ChatRenderer(self.tokenizer)
        self.said, self.summary = self.ids(said), self.ids(summary)
        self.question = self.ids(FULL.instruction)[:-1]

    def ids(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.renderer.turn_end_ids[0]]

    def answer(self, prompt: tuple[int, ...]) -> Sequence[int]:
        asked = self.tokenizer.decode(list(prompt[-len(self.question) - 12 :]))
        return self.summary if FULL.instruction in asked else self.said

    def play(self, env: Env, context: ContextConfig = FULL, *, longest: int = 4096, max_new: int = 12) -> Trajectory:
        self.engine = ScriptedEngine(self.answer, max_context_tokens=longest)
        agent = ModelAgent(
            self.engine, self.renderer, SamplingParams(max_new_tokens=max_new), 1, context, env.max_turns
        )
        return asyncio.run(run_episode(env, RolloutRequest(task=TASK, make_agent=lambda *_: agent, seed=1)))

    def prompt_of(self, number: int) -> str:
        return str(self.tokenizer.decode(list(self.engine.requests[number].prompt_ids)))


def summarising(**changes: Any) -> ContextConfig:
    return ContextConfig(
        policy="summarise", **{"summary_tokens": 16, "window_tokens": WINDOW, "max_summaries": 20, **changes}
    )


def windowed(num_turns: int, **changes: Any) -> ContextConfig:
    return ContextConfig(policy="window", num_turns=num_turns, **changes)


# ------------------------------------------------------------------------------------------------------- last turns


def test_a_window_shows_the_task_the_last_turns_and_what_is_seen_now() -> None:
    player = Player()
    trajectory = player.play(LongCounter(), windowed(2))
    assert [len(segment.turns) for segment in trajectory.segments] == [1] * 24
    assert trajectory.success
    assert player.prompt_of(0) == "Count to 24.<|act|>"
    assert player.prompt_of(1) == (
        "Count to 24.\n\nTurns taken: 1. The last of them:\n> add: 1\nNow:\nThe count is 1.<|act|>"
    )
    assert player.prompt_of(7) == (
        "Count to 24.\n\nTurns taken: 7. The last of them:\nThe count is 5.\n> add: 1\nThe count is 6.\n> add: 1\n"
        "Now:\nThe count is 7.<|act|>"
    )


def test_a_window_of_no_turns_sees_the_present_alone() -> None:
    player = Player()
    player.play(LongCounter(), windowed(0))
    assert player.prompt_of(7) == "Count to 24.\n\nNow:\nThe count is 7.<|act|>"


def test_a_window_shows_fewer_turns_where_they_do_not_fit() -> None:
    player = Player()
    trajectory = player.play(LongCounter(), windowed(30), longest=120)
    assert trajectory.status is Status.COMPLETED
    assert all(len(request.prompt_ids) + 12 <= 120 for request in player.engine.requests)
    shown = [player.prompt_of(number).count("> add") for number in range(24)]
    assert shown[:3] == [0, 1, 2]
    assert 2 < shown[-1] < 23


def test_a_window_too_small_for_the_present_ends_the_episode() -> None:
    assert Player().play(LongCounter(), windowed(2), longest=12).status is Status.TRUNCATED_TOKENS


def test_state_keys_do_not_depend_on_the_context() -> None:
    keys = [
        [turn.state_key for turn in Player().play(LongCounter(), context).turns if turn.kind == "act"]
        for context in (FULL, windowed(2), summarising())
    ]
    assert keys[0] == keys[1] == keys[2] == [f"{n}/24" for n in range(24)]


def test_a_window_shows_malformed_calls_and_the_valid_ones_beside_them() -> None:
    valid = '<tool_call>\n{"name": "add", "arguments": {"number": 1}}\n</tool_call>'
    player = Player(HERMES, said=f"<tool_call>oops</tool_call>{valid}")
    player.play(LongCounter(), windowed(1), max_new=80)
    shown = player.prompt_of(1).partition("The last of them:\n")[2]
    assert shown.startswith(f"> oops\n{valid}\nNow:\n")


# ---------------------------------------------------------------------------------------------------------- summary


def test_an_episode_longer_than_its_window_goes_on_after_a_summary() -> None:
    player = Player()
    whole = player.play(LongCounter())
    assert len(whole.segments[0].token_ids) > 3 * WINDOW
    trajectory = player.play(LongCounter(), summarising())
    assert (trajectory.status, trajectory.success) == (Status.COMPLETED, True)
    assert len(trajectory.segments) >= 3
    assert all(len(segment.token_ids) <= WINDOW for segment in trajectory.segments)
    kinds = [[turn.kind for turn in segment.turns] for segment in trajectory.segments]
    assert all(row[-1] == "summary" and set(row[:-1]) == {"act"} for row in kinds[:-1])
    assert set(kinds[-1]) == {"act"}
    assert [turn.index for turn in trajectory.turns] == list(range(len(trajectory.turns)))


def test_the_new_segment_has_the_task_the_summary_and_what_was_not_answered() -> None:
    player = Player()
    trajectory = player.play(LongCounter(), summarising())
    first = trajectory.segments[0]
    num_acts = len(first.turns) - 1
    opening = player.tokenizer.decode(list(trajectory.segments[1].turns[0].prompt_ids))
    assert opening == (
        f"Count to 24.\n\nSummary of the turns so far:\ncounted on\nNow:\nThe count is {num_acts}.<|act|>"
    )
    asked = player.tokenizer.decode(list(first.turns[-1].prompt_ids))
    assert asked == f"{FULL.instruction}<|act|>"


def test_what_was_sampled_is_trained_and_nothing_else() -> None:
    player = Player()
    for context in (FULL, windowed(2), summarising()):
        trajectory = player.play(LongCounter(), context)
        by_turn = [completion for segment in trajectory.segments for completion in _sampled(segment)]
        expected = [player.summary if turn.kind == "summary" else player.said for turn in trajectory.turns]
        assert by_turn == [token for row in expected for token in row]
        for request, turn in zip(player.engine.requests, trajectory.turns, strict=True):
            assert request.prompt_ids[len(request.prompt_ids) - len(turn.prompt_ids) :] == turn.prompt_ids


def _sampled(segment: Any) -> list[int]:
    return [token for token, flag in zip(segment.token_ids, segment.loss_mask, strict=True) if flag]


def test_where_everything_fits_nothing_changes() -> None:
    player = Player()
    whole = player.play(LongCounter())
    requests = list(player.engine.requests)
    roomy = player.play(LongCounter(), summarising(window_tokens=0))
    assert roomy.segments[0].token_ids == whole.segments[0].token_ids
    assert roomy.segments[0].loss_mask == whole.segments[0].loss_mask
    assert [r.sampling for r in player.engine.requests] == [r.sampling for r in requests]


def test_after_the_last_summary_a_full_window_ends_the_episode() -> None:
    trajectory = Player().play(LongCounter(), summarising(max_summaries=1))
    assert trajectory.status is Status.TRUNCATED_TOKENS
    assert [turn.kind for turn in trajectory.turns].count("summary") == 1
    assert len(trajectory.segments) == 2
    assert len(trajectory.segments[1].token_ids) <= WINDOW


def test_an_observation_of_any_length_is_kept_word_for_word() -> None:
    class Talkative(LongCounter):
        async def arespond(self, action: Message) -> Any:
            said = await super().arespond(action)
            return (
                (Message("user", "The count is 17.\n" * 12 + as_observation(said)[0].text),)
                if self.turn % 5 == 0
                else said
            )

    trajectory = Player().play(Talkative(), summarising(window_tokens=200))
    assert trajectory.status is Status.COMPLETED
    assert all(len(segment.token_ids) <= 200 for segment in trajectory.segments)


def test_a_summary_is_text_even_if_it_looks_like_a_call() -> None:
    trajectory = Player(summary="add: 3").play(LongCounter(), summarising())
    summaries = [turn for turn in trajectory.turns if turn.kind == "summary"]
    assert summaries and all(turn.action.calls == () and turn.is_valid and not turn.is_void for turn in summaries)
    assert trajectory.success, "no summary was counted"


def test_an_empty_summary_is_void() -> None:
    trajectory = Player(summary="").play(LongCounter(), summarising())
    assert all(turn.is_void for turn in trajectory.turns if turn.kind == "summary")


@pytest.mark.parametrize("template", [HERMES, THINKING])
def test_other_templates_play_the_same(template: str) -> None:
    call = '<tool_call>{"name": "add", "arguments": {"number": 1}}</tool_call>'
    player = Player(template, said=call if template is HERMES else f"<think>hm</think>{call}", summary="on")
    trajectory = player.play(LongCounter(), summarising(window_tokens=900), max_new=60)
    assert trajectory.success
    assert {turn.kind for turn in trajectory.turns} == {"act", "summary"}
    assert all(len(segment.token_ids) <= 900 for segment in trajectory.segments)
    again = player.play(LongCounter(), windowed(1), max_new=60)
    assert again.success
    assert "<think>" not in player.prompt_of(5)


def test_a_summary_is_asked_for_where_the_template_takes_no_user_message_after_calls() -> None:
    call = '{"name": "add", "arguments": {"number": 1}}'
    player = Player(MISTRAL, said=f"[TOOL_CALLS][{call}, {call}]", summary="on")
    trajectory = player.play(LongCounter(), summarising(window_tokens=600), max_new=100)
    assert trajectory.success
    summaries = [turn for turn in trajectory.turns if turn.kind == "summary"]
    assert summaries and all(len(segment.token_ids) <= 600 for segment in trajectory.segments)
    asked = player.tokenizer.decode(list(summaries[0].prompt_ids))
    assert asked == (
        f"[TOOL_RESULTS](no answer)[/TOOL_RESULTS][TOOL_RESULTS](no answer)\n{FULL.instruction}[/TOOL_RESULTS]"
    )
    assert all(
        request.sampling.max_new_tokens == 16
        for request, turn in zip(player.engine.requests, trajectory.turns, strict=True)
        if turn.kind == "summary"
    )


# ------------------------------------------------------------------------------------------------------- turns left


def test_turns_left_are_told_with_every_observation() -> None:
    player = Player()
    player.play(LongCounter(), ContextConfig(turns_left=True))
    assert player.prompt_of(2) == (
        "Count to 24.\nTurns left: 30.<|act|>add: 1<|end|>The count is 1.\nTurns left: 29.<|act|>"
        "add: 1<|end|>The count is 2.\nTurns left: 28.<|act|>"
    )


def test_turns_left_do_not_stay_in_the_memory() -> None:
    player = Player()
    player.play(LongCounter(), windowed(2, turns_left=True))
    assert player.prompt_of(3).count("Turns left") == 1
    assert player.prompt_of(3).endswith("The count is 3.\nTurns left: 27.<|act|>")
    player.play(LongCounter(), summarising(turns_left=True))
    prompts = [player.prompt_of(number) for number in range(len(player.engine.requests))]
    opening = next(prompt for prompt in prompts if "Summary" in prompt)
    assert opening.count("Turns left") == 1


def test_turns_left_need_a_limit() -> None:
    class Endless(LongCounter):
        max_turns = None  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="Endless has no turn limit"):
        check_turns_left(ContextConfig(turns_left=True), Endless())


# ----------------------------------------------------------------------------------------------------------- credit


def group_of(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(ordinal=0, task=TASK, trajectories=trajectories)


class EndsAt(LongCounter):
    """Rewards 1 or 0 after so many turns, and nothing else."""

    def __init__(self, num_turns: int, reward: float) -> None:
        super().__init__()
        self._num_turns, self._reward = num_turns, reward

    @tool
    def add(self, number: int) -> str:
        """Add a number to the count."""
        self.at += number
        if self.at == self._num_turns:
            self.finish(self._reward)
        return f"The count is {self.at}."


def test_segments_share_one_advantage_and_statistics_count_trajectories() -> None:
    """Returns 1, 0, 1, 0 in 3, 1, 2 and 4 segments: the numbers are those of four episodes, not of ten segments."""
    ends = [(10, 1.0), (3, 0.0), (8, 1.0), (13, 0.0)]
    played = [Player().play(EndsAt(*end), summarising(window_tokens=100)) for end in ends]
    assert [len(trajectory.segments) for trajectory in played] == [3, 1, 2, 4]
    credit = assign_credit([group_of(*played)], CreditConfig(estimator="supo"))
    for rows, expected in zip(credit[0], (0.866024, -0.866024, 0.866024, -0.866024), strict=True):
        assert [turn.advantage for turn in rows] == pytest.approx([expected] * len(rows), abs=1e-5)


def test_an_episode_cut_off_is_masked_in_all_its_segments_and_stays_in_the_statistics() -> None:
    short = Player().play(EndsAt(3, 1.0), summarising())
    long = Player().play(LongCounter(), summarising(max_summaries=1))
    assert long.status is Status.TRUNCATED_TOKENS and len(long.segments) == 2
    credit = assign_credit([group_of(short, long)], CreditConfig(estimator="supo"))
    assert {turn.loss_weight for turn in credit[0][0]} == {1.0}
    assert {turn.loss_weight for turn in credit[0][1]} == {0.0}
    assert credit[0][0][0].advantage == pytest.approx(0.7071, abs=1e-4)


def test_actions_are_compared_across_segments_and_summaries_with_summaries() -> None:
    wide, narrow = (Player().play(LongCounter(), summarising(window_tokens=size)) for size in (200, 160))
    table = turn_table([group_of(wide, wide, narrow)], columns=["segment", "observation"])
    turns = [turn for member in (wide, wide, narrow) for turn in member.turns]
    sizes = [int((table.anchor == code).sum()) for code in table.anchor]
    assert all(size >= 3 for size, turn in zip(sizes, turns, strict=True) if turn.kind == "act")
    assert all(size in (1, 2) for size, turn in zip(sizes, turns, strict=True) if turn.kind == "summary")
    assert table.segment is not None and max(table.segment) == len(narrow.segments) - 1
    assert table.observation is not None
    after = [table.observation[at + 1] for at, turn in enumerate(turns) if turn.kind == "summary"]
    assert after == [table.observation[at] for at, turn in enumerate(turns) if turn.kind == "summary"]


# --------------------------------------------------------------------------------------------------- demonstrations


def demonstration(context: ContextConfig, longest: int = 4096) -> Trajectory:
    env, renderer = LongCounter(), ChatRenderer(compact())
    agent = DemonstrationAgent(lambda _: env.oracle(), renderer, longest, 12, context, env.max_turns)
    return asyncio.run(run_episode(env, RolloutRequest(task=TASK, make_agent=lambda *_: agent)))


@pytest.mark.parametrize("context", [FULL, windowed(2), summarising(), summarising(window_tokens=120, turns_left=True)])
def test_demonstrations_have_the_contexts_of_the_policy_that_learns(context: ContextConfig) -> None:
    demo = demonstration(context)
    played = Player().play(LongCounter(), context)
    assert demo.success
    summaries = [turn.action.text for turn in demo.turns if turn.kind == "summary"]
    assert bool(summaries) == (context.policy == "summarise")
    if not summaries:
        assert [s.token_ids for s in demo.segments] == [s.token_ids for s in played.segments]
    first = [s.token_ids for s in (demo.segments[0], played.segments[0])]
    length = min(map(len, first)) - 20
    assert first[0][:length] == first[1][:length]


def test_a_demonstrated_summary_tells_the_newest_turns_that_fit() -> None:
    demo = demonstration(summarising(summary_tokens=40, window_tokens=140))
    said = [turn for turn in demo.turns if turn.kind == "summary"]
    assert all(0 < len(turn.completion.token_ids) <= 40 for turn in said)
    assert said[0].action.text.endswith("> add: 1")
    assert said[0].action.text.startswith("The count is ")


# -------------------------------------------------------------------------------------------------- messages, records


def test_images_stay_in_the_present() -> None:
    now = (Message("tool", (ImagePart("AAAA"),)),)
    (message,) = remembered((Message("user", "Click."),), [Exchange((), "click")], 1, now)
    assert message.content[-1] == ImagePart("AAAA")
    assert message.text == "Click.\n\nTurns taken: 1. The last of them:\n> click\nNow:\n"


class Screen(LongCounter):
    """Shows an image beside the text of every reply."""

    async def arespond(self, action: Message) -> Any:
        (said,) = as_observation(await super().arespond(action))
        return (Message("user", (TextPart(said.text), ImagePart("AAAA"))),)


def test_images_that_a_model_does_not_get_are_noted_once() -> None:
    notes = list[str]()
    watched = EpisodeNotes(notes.append)
    watched.watch(Player().play(LongCounter()))
    assert notes == []
    for _ in range(2):
        watched.watch(Player().play(Screen()))
    (note,) = notes
    assert "shows images, which the model does not get" in note


def test_a_run_notes_images_that_a_model_does_not_get(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=200)
    log = MetricsLog(tmp_path, console=console)
    log.watch([Player().play(Screen()), Player().play(Screen())])
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count("shows images, which the model does not get") == 1


def test_images_that_no_local_model_was_to_see_are_not_noted() -> None:
    notes = list[str]()
    env = Screen()
    request = RolloutRequest(task=TASK, make_agent=lambda *_: ScriptedAgent(lambda _: env.oracle()))
    EpisodeNotes(notes.append).watch(asyncio.run(run_episode(env, request)))
    assert notes == []


def test_a_task_that_is_no_user_message_stays_as_it_is() -> None:
    system = Message("system", "You count.")
    assert summarised((system,), "s", (Message("tool", "1"),)) == (
        system,
        Message("user", "Summary of the turns so far:\ns\nNow:\n1"),
    )


def test_records_keep_segments_and_kinds(tmp_path: Any) -> None:
    trajectory = Player().play(LongCounter(), summarising())
    write_records(tmp_path / "r.gz", [GroupRecord(group=group_of(trajectory))])
    (record,) = read_records(tmp_path / "r.gz")
    assert record.group.trajectories[0].segments == trajectory.segments


@pytest.mark.parametrize("wrong", [{"num_turns": -1}, {"summary_tokens": 0}, {"instruction": " "}, {"policy": "last"}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="context"):
        FULL.changed(wrong)


def test_an_unknown_setting_names_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'context\.num_turns'"):
        FULL.changed({"num_turn": 2})


def test_a_window_without_room_for_a_turn_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"a turn of 100 tokens .* a summary of 16 .* a window of 110"):
        summarising(window_tokens=0).check_room(110, 100)
