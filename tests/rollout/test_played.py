"""Actions that were replaced: what later prompts hold, what is trained, and that a record of it can be read."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from testkit.tokenizers_for_tests import HERMES, trained
from testkit.worlds import Counter

from agentgym.check.policies import ScriptedEngine
from agentgym.credit.columns import turn_table
from agentgym.credit.compose import CreditConfig, assign_credit
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.envs.semi_online.env import SemiOnlineEnv
from agentgym.envs.semi_online.traces import record_traces
from agentgym.registry import register
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import Agent, DemonstrationAgent, ModelAgent, ScriptedAgent
from agentgym.rollout.context import FULL, ContextConfig
from agentgym.rollout.loop import run_episode
from agentgym.rollout.record import GroupRecord, read_records, write_records
from agentgym.rollout.request import RolloutRequest
from agentgym.trainers.models.tiny import CHAT_TEMPLATE, train_tokenizer
from agentgym.types import Task, Trajectory, TrajectoryGroup

SUMMARISE = ContextConfig(policy="summarise", window_tokens=70, summary_tokens=10, max_summaries=9)
WINDOW = ContextConfig(policy="window", num_turns=2)


class Steps(Counter):
    """Count to six, one at a time."""

    max_turns = 9

    def start(self, task: Task) -> str:
        super().start(task)
        self.goal = 6
        return "Count to 6."


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    register("tests/PlayedSteps-v0", Steps)
    path = tmp_path_factory.mktemp("traces") / "steps.jsonl"
    record_traces(Steps(), [Task(id="t", split="train", seed=0)], path)
    return path


def request(env: Env, agent: Agent, seed: int = 0) -> RolloutRequest:
    return RolloutRequest(task=env.tasks("train")[0], make_agent=lambda *_: agent, seed=seed)


def semi_online(traces: Path, max_patches: int | None = None) -> SemiOnlineEnv:
    return SemiOnlineEnv(env="tests/PlayedSteps-v0", traces=traces, max_patches=max_patches)


class Player:
    """Plays by a scripted engine that says the given things in turn, and ``add: 1`` after them."""

    def __init__(self, said: Sequence[str], template: str = CHAT_TEMPLATE, right: str = "add: 1") -> None:
        phrases = (*SUMMARISE.phrases, *WINDOW.phrases)
        texts = ["Count to 6.\n", "The count is 5.\n", "add: 1", "> add: 1\n", "add: 3", "counted on", *phrases]
        self.tokenizer: Any = train_tokenizer(texts * 20, 500) if template is CHAT_TEMPLATE else trained(template)
        self.renderer = ChatRenderer(self.tokenizer)
        self.right, self.said = right, list(said)

    def ids(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.renderer.turn_end_ids[0]]

    def answer(self, prompt: tuple[int, ...]) -> Sequence[int]:
        if SUMMARISE.instruction in self.tokenizer.decode(list(prompt)):
            return self.ids("counted on")
        return self.ids(self.said.pop(0) if self.said else self.right)

    def play(self, env: Env, context: ContextConfig = FULL, max_new: int = 12) -> Trajectory:
        self.engine = ScriptedEngine(self.answer)
        agent = ModelAgent(self.engine, self.renderer, SamplingParams(max_new_tokens=max_new), 1, context)
        return asyncio.run(run_episode(env, request(env, agent, seed=1)))

    def prompt_of(self, number: int) -> str:
        return str(self.tokenizer.decode(list(self.engine.requests[number].prompt_ids)))


def test_later_prompts_hold_what_was_played_in_a_new_segment(traces: Path) -> None:
    player = Player(["add: 1", "add: 3", "add: 1"])
    trajectory = player.play(semi_online(traces))
    assert [len(segment.turns) for segment in trajectory.segments] == [2, 4]
    assert player.prompt_of(1) == "Count to 6.<|act|>add: 1<|end|>The count is 1.<|act|>"
    assert player.prompt_of(2) == (
        "Count to 6.<|act|>add: 1<|end|>The count is 1.<|act|>add: 1<|end|>The count is 2.<|act|>"
    )
    assert player.prompt_of(3).count("add: 1<|end|>") == 3, "within a segment tokens are as they were"


def test_what_was_sampled_is_trained_and_nothing_else(traces: Path) -> None:
    player = Player(["add: 1", "add: 3", "add: 2"])
    said = [player.ids(text) for text in ["add: 1", "add: 3", "add: 2", *["add: 1"] * 3]]
    for context in (FULL, WINDOW):
        player.said = ["add: 1", "add: 3", "add: 2"]
        trajectory = player.play(semi_online(traces), context)
        assert [list(turn.completion.token_ids) for turn in trajectory.turns] == said
        trained_on = [
            token
            for segment in trajectory.segments
            for token, flag in zip(segment.token_ids, segment.loss_mask, strict=True)
            if flag
        ]
        assert trained_on == [token for row in said for token in row]
        for request, turn in zip(player.engine.requests, trajectory.turns, strict=True):
            assert request.prompt_ids[len(request.prompt_ids) - len(turn.prompt_ids) :] == turn.prompt_ids
        assert [turn.action.text for turn in trajectory.turns[:3]] == ["add: 1", "add: 3", "add: 2"]
        assert [turn.played.text if turn.played else None for turn in trajectory.turns] == [
            None, "add: 1", "add: 1", None, None, None,
        ]  # fmt: skip


def test_without_a_wrong_action_there_is_one_segment(traces: Path) -> None:
    player = Player([])
    trajectory = player.play(semi_online(traces))
    bare = Player([]).play(_only(Steps()))
    assert trajectory.success and len(trajectory.segments) == 1
    assert trajectory.segments[0].token_ids == bare.segments[0].token_ids


def _only(env: Env) -> Env:
    env.tasks = lambda split: (Task(id="t", split=split, seed=0),)  # type: ignore[method-assign]
    return env


def test_calls_are_written_in_the_models_own_format(traces: Path) -> None:
    right = '<tool_call>\n{"name": "add", "arguments": {"number": 1}}\n</tool_call>'
    player = Player([right.replace("1}", "3}"), "nonsense"], HERMES, right)
    trajectory = player.play(semi_online(traces), max_new=60)
    assert [turn.played is not None for turn in trajectory.turns] == [True, True, False, False, False, False]
    history = player.prompt_of(2)
    assert '"number": 3' not in history and "nonsense" not in history
    assert history.count('<tool_call>\n{"name": "add", "arguments": {"number": 1}}\n</tool_call>') == 2


def test_a_window_shows_what_was_played(traces: Path) -> None:
    player = Player(["add: 3"])
    player.play(semi_online(traces), WINDOW)
    assert player.prompt_of(1) == (
        "Count to 6.\n\nTurns taken: 1. The last of them:\n> add: 1\nNow:\nThe count is 1.<|act|>"
    )


def test_a_full_window_is_summarised_after_a_replaced_action_too(traces: Path) -> None:
    player = Player(["add: 3"] * 6)
    trajectory = player.play(semi_online(traces), SUMMARISE)
    kinds = [turn.kind for turn in trajectory.turns]
    assert kinds.count("act") == 6 and "summary" in kinds
    assert all(len(segment.token_ids) <= 70 for segment in trajectory.segments)
    for number, turn in enumerate(trajectory.turns):
        assert "add: 3" not in player.prompt_of(number)
        assert turn.prompt_ids == player.engine.requests[number].prompt_ids, "every turn begins a segment"
    asked = kinds.index("summary")
    assert player.prompt_of(asked).endswith(f"add: 1<|end|>{SUMMARISE.instruction}<|act|>")


def test_an_episode_out_of_patches_ends(traces: Path) -> None:
    trajectory = Player(["add: 3", "add: 1", "add: 2"]).play(semi_online(traces, max_patches=1))
    assert [turn.played is not None for turn in trajectory.turns] == [True, False, False]
    assert (trajectory.status.value, trajectory.success) == ("completed", False)
    assert [round(turn.reward, 2) for turn in trajectory.turns] == [0.55, 1.0, 0.55]


def test_scripted_policies_and_demonstrations_are_told(traces: Path) -> None:
    env = semi_online(traces)
    wrong = Steps().parse_action("add: 3")
    scripted = asyncio.run(run_episode(env, request(env, ScriptedAgent(lambda seen: wrong))))
    assert [turn.played == env.parse_action("add: 1") for turn in scripted.turns] == [True] * 6
    player = Player([])
    agent = DemonstrationAgent(lambda seen: wrong, player.renderer, 4096)
    shown = asyncio.run(run_episode(env, request(env, agent)))
    assert len(shown.segments) == 6
    last = player.tokenizer.decode(list(shown.segments[-1].turns[0].prompt_ids))
    assert last.count("add: 1") == 5 and "add: 3" not in last


def test_a_changed_world_ends_an_episode_without_a_reward(traces: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.jsonl"
    changed.write_text(traces.read_text().replace('"2/6"', '"5/6"'))
    trajectory = Player(["add: 3"]).play(semi_online(changed))
    assert (trajectory.status.value, trajectory.reward, trajectory.success) == ("env_error", None, None)
    assert trajectory.error is not None and "record the traces anew" in trajectory.error


def test_records_keep_it_and_older_ones_are_still_read(traces: Path, tmp_path: Path) -> None:
    trajectory = Player(["add: 3"]).play(semi_online(traces))
    group = TrajectoryGroup(ordinal=0, task=trajectory.task, trajectories=(trajectory,))
    path = tmp_path / "step.jsonl.gz"
    write_records(path, [GroupRecord(group=group)])
    assert read_records(path)[0].group == group
    row = json.loads(gzip.decompress(path.read_bytes()))
    turns = [turn for segment in row["group"]["trajectories"][0]["segments"] for turn in segment["turns"]]
    for turn in turns:
        del turn["played"]
    path.write_bytes(gzip.compress(json.dumps(row).encode() + b"\n"))
    assert all(turn.played is None for turn in read_records(path)[0].group.trajectories[0].turns)


def test_credit_knows_what_was_patched(traces: Path) -> None:
    members = tuple(Player(said).play(semi_online(traces)) for said in ([], ["add: 1", "add: 3"]))
    group = TrajectoryGroup(ordinal=0, task=members[0].task, trajectories=members)
    table = turn_table([group], ["is_patched"])
    assert table.is_patched is not None
    assert table.is_patched.tolist() == [False] * 6 + [False, True, False, False, False, False]
    (credit,) = assign_credit([group], CreditConfig(estimator="ui_s1"))
    first, second = credit
    assert [round(turn.return_to_go, 6) for turn in second[:3]] == [1.0, 0.55, 1.875]
    assert second[1].advantage < 0 < first[1].advantage
    assert first[5].advantage == pytest.approx(second[5].advantage)
