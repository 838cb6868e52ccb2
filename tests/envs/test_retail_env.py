"""The generated shop: the gold policy wins, and nothing else that is almost it does."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import numpy as np
import pytest

from agentgym import make
from agentgym.check import check_env
from agentgym.check.episodes import CheckEpisode, play, replay
from agentgym.check.policies import oracle_action, random_action
from agentgym.envs.domains.database import Database
from agentgym.envs.domains.env import ANOTHER_USER, UNCONFIRMED, UNIDENTIFIED
from agentgym.envs.domains.task import GoldAction, task_of_record
from agentgym.envs.retail.env import RetailEnv
from agentgym.envs.retail.generator import Difficulty, case_of_seed
from agentgym.envs.retail.tools import RetailTools
from agentgym.errors import UnknownNameError, UsageError
from agentgym.evals.policies import named_policy
from agentgym.rollout.loop import run_episode
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Message, RewardRole, Task, ToolCall

oracle = named_policy("oracle")

DONE = Message("assistant", "It is done. Is there anything else I can help with?")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def gold(env: RetailEnv, task: Task) -> CheckEpisode:
    return play(env, oracle_action, task, rng())


def is_write(action: Message) -> bool:
    return any(isinstance(call, ToolCall) and call.name in RetailTools.writes for call in action.calls)


def is_successful(env: RetailEnv, actions: list[Message], task: Task) -> bool:
    episode = replay(env, actions, task)
    assert episode.is_over
    assert sum(step.reward for step in episode.steps) <= float(episode.is_success)
    return episode.is_success


def test_the_kit_finds_nothing_wrong() -> None:
    report = check_env("agentgym/Retail-v0", num_episodes=3)
    assert [f"{check.name}: {check.detail}" for check in report.failures] == []


def test_the_oracle_wins_500_tasks_and_breaks_no_rule() -> None:
    env = RetailEnv()
    kinds: set[str] = set()
    for task in env.tasks("valid")[:500]:
        episode = gold(env, task)
        assert episode.is_success and sum(step.reward for step in episode.steps) == 1.0, task.id
        assert episode.steps[-1].info["violations"] == (), task.id
        assert all(step.info["is_valid"] for step in episode.steps), task.id
        kinds |= {request["kind"] for request in env.case.task.script["requests"]}
    assert len(kinds) == 23, sorted(kinds)


@pytest.mark.parametrize(
    "knobs",
    [
        {"num_requests": 1},
        {"num_requests": 3, "num_products": 24, "num_users": 40},
        {"forbidden": 1.0, "conditional": 0.0},
        {"num_users": 1},
    ],
)
def test_the_oracle_wins_at_every_difficulty(knobs: dict[str, float]) -> None:
    env = make("agentgym/Retail-v0", **knobs)
    assert isinstance(env, RetailEnv)
    assert all(gold(env, task).is_success for task in env.tasks("test")[:20])


def test_leaving_out_any_one_change_scores_nothing() -> None:
    env = RetailEnv()
    num_dropped = 0
    for task in env.tasks("test")[:100]:
        actions = list(gold(env, task).actions)
        for place in [place for place, action in enumerate(actions) if is_write(action)]:
            assert not is_successful(env, [*actions[:place], *actions[place + 1 :]], task), (task.id, place)
            num_dropped += 1
    assert num_dropped > 80


def test_a_change_that_nobody_asked_for_scores_nothing_and_is_noted() -> None:
    env = RetailEnv()
    for task in env.tasks("test")[:60]:
        actions = list(gold(env, task).actions)
        home = {
            "address1": "1 Far Away",
            "address2": "",
            "city": "Nome",
            "state": "AK",
            "country": "USA",
            "zip": "99762",
        }
        extra = env.message_of(GoldAction("modify_user_address", {"user_id": env.conversation.who, **home}))
        place = next(place for place, action in enumerate(actions) if action.calls) + 1  # after finding out who it is
        episode = replay(env, [*actions[:place], extra, *actions[place:]], task)
        overwrites = any(request["kind"] == "user address" for request in env.case.task.script["requests"])
        assert episode.is_success == overwrites, task.id
        assert UNCONFIRMED in episode.steps[-1].info["violations"]
        cost = [part for part in episode.steps[place].info["reward_parts"] if part.role is RewardRole.COST]
        assert [part.value for part in cost] == [-0.1]


def test_a_needless_transfer_scores_nothing() -> None:
    env = RetailEnv(forbidden=0.0)
    transfer = env.message_of(GoldAction("transfer_to_human_agents", {"summary": "I give up."}))
    for task in env.tasks("test")[:20]:
        *actions, last = gold(env, task).actions
        assert not is_successful(env, [*actions, transfer, last], task), task.id


def test_what_was_to_be_told_and_was_not_scores_nothing() -> None:
    env = RetailEnv(num_requests=1, forbidden=0.0, conditional=0.0)
    asked = [task for task in env.tasks("test")[:100] if env.case_of(task).task.communicate_info]
    assert len(asked) > 10
    for task in asked:
        actions = [action for action in gold(env, task).actions if action.calls or action.text.endswith("?")]
        end = [Message("assistant", "I am sorry, I cannot tell you that.")] * 2
        episode = replay(env, [*actions, *end], task)
        assert episode.is_over and not episode.is_success and episode.steps[-1].info["untold"], task.id


def test_rules_that_the_tools_let_one_break_are_noted() -> None:
    env = RetailEnv(violation_cost=0.25)
    env.reset(options={"task": 5, "split": "test"})
    users = list(env.case.tables["users"].values())
    mine, other = users[0], users[1]
    look = GoldAction("get_user_details", {"user_id": mine["user_id"]})
    assert env.step(env.message_of(look))[1] == -0.25
    env.step(env.message_of(GoldAction("find_user_id_by_email", {"email": mine["email"]})))
    assert env.step(env.message_of(look))[1] == 0.0
    info = env.step(env.message_of(GoldAction("get_order_details", {"order_id": other["orders"][0]})))[4]
    assert info["violations"] == (UNIDENTIFIED, ANOTHER_USER)


def test_a_refused_call_breaks_no_rule() -> None:
    env = RetailEnv()
    env.reset(options={"task": 5, "split": "test"})
    order_id = env.case.tables["users"][next(iter(env.case.tables["users"]))]["orders"][0]
    call = GoldAction("cancel_pending_order", {"order_id": order_id, "reason": "for fun"})
    observation, reward, _, _, info = env.step(env.message_of(call))
    assert (reward, info["violations"], info["is_valid"]) == (0.0, (), False)
    assert "Error" in observation[0].text


def test_the_same_seed_makes_the_same_world_and_another_one_another() -> None:
    def world(seed: int) -> str:
        case_of_seed.cache_clear()
        return json.dumps(asdict(case_of_seed(seed, Difficulty())), sort_keys=True)

    assert world(7) == world(7) != world(8)


def test_no_customer_is_in_two_splits() -> None:
    env = RetailEnv()
    who = {
        split: {next(iter(env.case_of(task).tables["users"])) for task in env.tasks(split)[:150]}
        for split in ("train", "valid", "test")
    }
    assert not who["train"] & who["valid"] and not who["train"] & who["test"] and not who["valid"] & who["test"]


def test_the_seed_of_the_episode_varies_the_words_alone() -> None:
    env = RetailEnv()
    task = env.tasks("test")[3]
    firsts = {env.reset(seed=seed, options={"task": task})[0][0].text for seed in range(20)}
    tables = {id(env.case.tables) for seed in range(3) if env.reset(seed=seed, options={"task": task})}
    assert len(firsts) > 2 and len(tables) == 1


def test_a_fork_at_any_turn_ends_alike() -> None:
    env, other = RetailEnv(), RetailEnv()
    for task in env.tasks("test")[:8]:
        actions = gold(env, task).actions
        for place in range(len(actions)):
            env.reset(options={"task": task})
            for action in actions[:place]:
                env.step(action)
            snapshot = env.snapshot()
            ends = []
            for fork in (env, other, env):
                fork.restore(snapshot)
                steps = [fork.step(action) for action in actions[place:]]
                ends.append(([step[1] for step in steps], fork.state_key(), fork.toolkit.db.changes()))
            assert ends[0] == ends[1] == ends[2] and ends[0][0][-1] == 1.0


def test_an_episode_leaves_the_shared_tables_alone() -> None:
    env = RetailEnv()
    for task in env.tasks("test")[:30]:
        before = json.dumps(env.case_of(task).tables, sort_keys=True)
        gold(env, task)
        play(env, random_action, task, rng())
        assert json.dumps(env.case_of(task).tables, sort_keys=True) == before


def test_a_transfer_ends_with_the_next_message() -> None:
    env = RetailEnv()
    task = next(
        task
        for task in env.tasks("test")
        if [request["kind"] for request in env.case_of(task).task.script["requests"]][-1] == "a person"
    )
    episode = gold(env, task)
    assert episode.is_success and "###TRANSFER###" in episode.steps[-1].observation[0].text
    assert env.toolkit.db.changes()["transfers"] == {"transfer": {"is_done": True}}


def test_thinking_is_not_said_aloud() -> None:
    env = RetailEnv()
    env.reset(seed=0)
    before = env.state_key()
    observation, _, _, _, info = env.step(Message("assistant", "<think>What is your email?</think>"))
    assert "said nothing" in observation[0].text and not info["is_valid"] and env.state_key() == before


def test_actions_that_are_offered_are_possible() -> None:
    env = RetailEnv()
    for task in env.tasks("test")[:10]:
        env.reset(options={"task": task})
        start = env.snapshot()
        for text in env.admissible_actions():
            env.restore(start)
            assert env.step(text)[4]["is_valid"], text


def test_a_generated_task_is_one_of_tau2s_format_and_survives_json() -> None:
    case = case_of_seed(11, Difficulty())
    tools = RetailTools(Database(json.loads(json.dumps(case.tables))))
    for action in case.task.actions:
        tools.call(action)
    same = RetailTools(Database(case.tables))
    same.replay(case.task.actions)
    assert tools.db.hash() == same.db.hash()
    record = {
        "id": case.task.id,
        "user_scenario": {
            "instructions": asdict(case.task.scenario),
            "script": json.loads(json.dumps(case.task.script)),
        },
        "evaluation_criteria": {
            "actions": [asdict(action) for action in case.task.actions],
            "communicate_info": list(case.task.communicate_info),
        },
    }
    again = task_of_record(json.loads(json.dumps(record)))
    assert (again.actions, again.communicate_info) == (case.task.actions, case.task.communicate_info)


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"num_requests": 4}, "num_requests"),
        ({"forbidden": 0.8, "conditional": 0.3}, "forbidden"),
        ({"num_products": 5}, "num_products"),
        ({"num_users": 0}, "num_users"),
        ({"violation_cost": -1.0}, "violation_cost"),
        ({"user": "nobody"}, r'as in .user=\{"url": "http://127\.0\.0\.1:8000/v1", "model": "NAME"\}.; got .nobody'),
        ({"user": {"url": "no url", "model": "m"}}, "needs a url such as"),
        ({"user": {"url": "http://x", "modl": "m"}}, r"'user\.modl'; did you mean 'user\.model'"),
        ({"user": {"url": 3, "model": "m"}}, r"user\.url: .*string"),
        ({"user": {"url": "http://x"}}, r"user\.model: "),
    ],
)
def test_impossible_options_are_refused(knobs: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make("agentgym/Retail-v0", **knobs)


def test_a_task_of_another_world_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="num_rooms"):
        RetailEnv().reset(options={"task": Task(id="x", split="train", seed=0, data={"num_rooms": 2})})


def test_words_to_the_user_are_no_void_turns() -> None:
    env = RetailEnv(num_requests=1)
    task = env.tasks("train")[0]
    trajectory = asyncio.run(run_episode(env, RolloutRequest(task=task, make_agent=oracle)))
    spoken = [turn for turn in trajectory.turns if not turn.action.calls]
    assert trajectory.success and spoken and not any(turn.is_void for turn in trajectory.turns)


def test_what_is_possible_does_not_tell_the_gold_calls() -> None:
    env = RetailEnv(num_requests=2)
    told = 0
    for number in range(40):
        env.reset(options={"task": number})
        writes = [env.message_of(action).text for action in env.case.task.actions if action.name in RetailTools.writes]
        shown = env.admissible_actions()
        told += sum(text in shown for text in writes if "cancel_pending_order" not in text)
    assert told == 0
