"""How far the policy has moved on each task since it last met it: what SPO forgets by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from agentgym.credit.columns import recorded_columns
from agentgym.credit.table import Floats
from agentgym.trainers.scoring.tokens import Question, sampled_positions, score
from agentgym.trainers.types import CausalLM, StateDict
from agentgym.types import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Response:
    """One context window sampled earlier, with the trainer's log-probabilities of its sampled tokens at that time."""

    token_ids: tuple[int, ...]
    at: tuple[int, ...]
    """Positions of the sampled tokens."""
    logprobs: tuple[float, ...]


class DriftMeter:
    """Keeps the last response to each task and measures ``mean |log-prob then - log-prob now|`` over its tokens.

    Both log-probabilities come from the trainer's model, as in the release. Those of the inference engine differ from
    them even while the weights stand still, which would count as drift.

    The response is the first valid member of the task's last group, all its context windows. Of more than ``max_tasks``
    tasks, those met longest ago are forgotten and start at 0 again.

    Source: "Single-stream Policy Optimization" and its code (verl-recipe ``spo/spo_ray_trainer.py``).
    """

    def __init__(self, max_tasks: int) -> None:
        self._max_tasks = max_tasks
        self._last: dict[str, tuple[Response, ...]] = {}

    def measure(
        self, model: CausalLM, groups: Sequence[TrajectoryGroup], *, temperature: float, tokens_per_microbatch: int
    ) -> dict[str, float]:
        """Drift on each task of the groups that was met before, by the task's lasting name, with today's weights."""
        known = [key for key in dict.fromkeys(task_keys(groups)) if key in self._last]
        questions = [Question.about(each.token_ids, each.at) for key in known for each in self._last[key]]
        scores = iter(score(model, questions, temperature=temperature, tokens_per_microbatch=tokens_per_microbatch))
        return {key: _mean_change([(each, next(scores).logprobs) for each in self._last[key]]) for key in known}

    def remember(
        self, model: CausalLM, groups: Sequence[TrajectoryGroup], *, temperature: float, tokens_per_microbatch: int
    ) -> None:
        """Keep the groups' responses as the last ones, with their log-probabilities under today's weights."""
        spoken: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
        for key, group in zip(task_keys(groups), groups, strict=True):
            windows = next((_windows(t) for t in group.valid if t.turns), None)
            if windows is not None:
                spoken.pop(key, None)
                spoken[key] = windows
        questions = [Question.about(*window) for windows in spoken.values() for window in windows]
        scores = iter(score(model, questions, temperature=temperature, tokens_per_microbatch=tokens_per_microbatch))
        for key, windows in spoken.items():
            self._last.pop(key, None)
            self._last[key] = tuple(Response(ids, at, tuple(next(scores).logprobs.tolist())) for ids, at in windows)
        for key in list(self._last)[: max(0, len(self._last) - self._max_tasks)]:
            del self._last[key]

    def state_dict(self) -> StateDict:
        """Plain dicts, lists and numbers."""
        return {key: [asdict(each) for each in responses] for key, responses in self._last.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self._last = {
            key: tuple(Response(**{name: tuple(values) for name, values in row.items()}) for row in rows)
            for key, rows in state.items()
        }


def task_keys(groups: Sequence[TrajectoryGroup]) -> tuple[str, ...]:
    """Lasting name of each group's task, as trackers use it."""
    keys: tuple[str, ...] = recorded_columns(groups, ["group_keys"])["group_keys"]
    return keys


def per_turn(groups: Sequence[TrajectoryGroup], of_task: Mapping[str, float]) -> Floats:
    """A number per task as a column of turns ``[N]``, 0 where there is none."""
    return np.array(
        [
            of_task.get(key, 0.0)
            for key, group in zip(task_keys(groups), groups, strict=True)
            for trajectory in group.valid
            for _ in trajectory.turns
        ],
        dtype=np.float64,
    )


def _windows(trajectory: Trajectory) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the tokens and the positions of sampled tokens of each context window."""
    return [(segment.token_ids, sampled_positions(segment)) for segment in trajectory.segments]


def _mean_change(pairs: Sequence[tuple[Response, Floats]]) -> float:
    changes = np.concatenate([np.abs(np.array(then.logprobs) - now) for then, now in pairs])
    return float(changes.mean()) if len(changes) else 0.0
