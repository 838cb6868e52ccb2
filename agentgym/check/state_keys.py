"""The check of state keys: they differ between states, and hold no history, counter or id."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from agentgym.check.contract import free_texts
from agentgym.check.episodes import CheckEpisode, brief, noop, play
from agentgym.check.gold import ORACLE_TURNS
from agentgym.check.policies import Policy, oracle_action, random_action
from agentgym.check.report import CheckFailed
from agentgym.check.subject import Subject, played
from agentgym.errors import UsageError
from agentgym.types import Task

_FEWEST_STATES = 8
_FEWEST_TURNS = 3
_NUMBER = re.compile(r"\d{1,18}")


def state_keys(subject: Subject) -> str:
    """Check that state keys differ between states and depend on nothing but the state."""
    task = subject.tasks(1)[0]
    tasks = [task] * max(4, subject.num_episodes)
    episodes = [*played(subject, random_action, tasks), *played(subject, _with_pauses(random_action), tasks)]
    ways: dict[str, set[tuple[str, ...]]] = {}  # action histories that led to each key
    for episode in episodes:
        acts = tuple(str(action) for action in episode.actions)
        for turn, key in enumerate(episode.state_keys[1:], 1):
            ways.setdefault(key, set()).add(acts[:turn])
    says = {str([str(message) for message in said]) for episode in episodes for said in episode.observations}
    if len({key for episode in episodes for key in episode.state_keys}) == 1 and len(says) > 1:
        if not _got_further(subject, task):
            return (
                "not applicable: random calls never got further than the start, so this cannot be judged; write "
                "admissible_actions()"
            )
        raise CheckFailed(f"the key never changes ({brief(episodes[0].last_state_key)}) while observations do")
    num_states = sum(len(episode.steps) for episode in episodes)
    if num_states < _FEWEST_STATES:
        return f"not applicable: {num_states} states are too few to judge"
    if all(len(histories) == 1 for histories in ways.values()):
        raise CheckFailed(
            f"none of {num_states} states was reached in two ways; does the key hold a history, a counter or an id?"
        )
    num_any_turn = sum(len({len(history) for history in histories}) > 1 for histories in ways.values())
    repeats = f"{1 - len(ways) / num_states:.0%} of {num_states} states of one task are repeats"
    told = f"{repeats}; {num_any_turn} of {len(ways)} keys are met at different turns"
    return f"warning: {told}; {counter}" if (counter := _turn_counter(episodes)) else told


def _turn_counter(episodes: Sequence[CheckEpisode]) -> str:
    """Return a remark on a number in all keys that counts turns, also those in which nothing is done; else nothing."""
    starts = [_numbers(one.state_keys[0]) for one in episodes for _ in one.state_keys]
    turns = [turn for one in episodes for turn in range(len(one.state_keys))]
    found = [_numbers(key) for one in episodes for key in one.state_keys]
    if len(set(turns)) < _FEWEST_TURNS:
        return ""
    fewest = min(map(len, found))
    for place in range(-fewest, fewest):  # from both ends: texts before or after it may have more or fewer numbers
        changes = [now[place] - start[place] for now, start in zip(found, starts, strict=True)]
        if changes in (turns, [-turn for turn in turns]):
            return (
                f"a number in the key ({brief(episodes[0].last_state_key)}) counts turns, so that turns are only "
                "compared with those of the same number: leave it out, unless it decides the future"
            )
    return ""


def _numbers(key: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(key)]


def _with_pauses(policy: Policy) -> Policy:
    """Return a policy that does nothing every second turn. If that changes nothing, it reaches states in two ways."""
    return lambda env, observation, rng: (policy if rng.random() < 0.5 else noop)(env, observation, rng)


def _got_further(subject: Subject, task: Task) -> bool:
    """Return True if random calls that never changed the state key should have changed it.

    Random free text may have no effect, but the actions of an oracle that succeeds must change the key. If they do
    not, the key is faulty.
    """
    with contextlib.closing(subject.factory()) as env:
        env.reset(options={"task": task})
        is_free = not env.tools or any(free_texts(spec.parameters) for spec in env.tools)
        if env.admissible_actions() or not is_free:
            return True
        try:
            episode = play(env, oracle_action, task, subject.rng(13), max_turns=ORACLE_TURNS)
        except UsageError:  # no oracle
            return False
    return episode.is_success and len(episode.steps) > 1 and len(set(episode.state_keys)) == 1
