"""The columns of the credit table that need the model. They are computed before credit, with the sampling weights.

Each column is computed only if the credit configuration reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from agentgym.credit.columns import join_columns, recorded_columns, split_columns
from agentgym.credit.compose import CreditResult
from agentgym.credit.table import Floats
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.columns import needed_columns
from agentgym.trainers.config.schedules import scheduled
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.critics.archer import TwinCritic
from agentgym.trainers.critics.critic import Critic, ValueCritic
from agentgym.trainers.critics.progress import ProgressEstimator
from agentgym.trainers.data.outline import GroupMetadata
from agentgym.trainers.data.row import Row
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import ranks_of
from agentgym.trainers.scoring.answers import check_scoring, score_answers
from agentgym.trainers.scoring.tokens import sampled_row, score_by_role, segments_of
from agentgym.trainers.types import CausalLM, StateDict
from agentgym.types import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class MadeColumns:
    """Columns for ``credit_groups``, over the turns of valid trajectories, and metrics about them."""

    columns: dict[str, Any]
    metrics: dict[str, float]


class ColumnMaker:
    """The computation of a run's columns, and its state from step to step. All ranks call its methods alike.

    Args:
        roles: the models of trained roles, which read the tokens that they sampled.
    """

    def __init__(
        self, config: TrainConfig, model: CausalLM, renderer: ChatRenderer, roles: Mapping[str, CausalLM] | None = None
    ) -> None:
        self._config, self._model, self._renderer, self._roles = config, model, renderer, roles or {}
        self._models = {"": model, **self._roles}
        self._names = needed_columns(config.credit)
        if "answer_logprobs" in self._names:
            check_scoring(model, config.columns.scoring)
        self._drift = DriftMeter(config.columns.max_drift_tasks, ranks_of(model))
        self._critics: dict[str, Critic] = {}

    def begin(self) -> None:
        """Initialise the critic and the progress estimator, if needed, from the current policy."""
        self._critics = _make_critics(self._config, self._model, self._names, self._roles)

    def make(self, groups: Sequence[TrajectoryGroup], step: int = 0) -> MadeColumns:
        """Compute the columns of a step's rollouts; the weights must still be those that sampled them.

        A group whose tokens another rank has may be an outline. All ranks receive the columns of all groups.
        """
        temperature = scheduled(self._config, step).sampling.temperature
        columns = self._scored(groups, temperature)
        metrics: dict[str, float] = {}
        if "drift" in self._names:
            drift = self._measured_drift(groups, temperature)
            columns["drift"] = per_turn(groups, drift)
            metrics["drift"] = sum(drift.values()) / max(1, len(drift))
            metrics["revisited_share"] = len(drift) / max(1, len(groups))
        for critic in self._critics.values():
            for name, values in critic.columns(groups).items():  # of a critic by role NaN at the others' turns
                columns[name] = np.where(np.isnan(values), columns[name], values) if name in columns else values
        return MadeColumns({name: value for name, value in columns.items() if name in self._names}, metrics)

    def _scored(self, groups: Sequence[TrajectoryGroup], temperature: float) -> dict[str, Any]:
        """Return the columns that are scores of tokens; each rank asks for those of its own groups."""
        own = [group for group in groups if not isinstance(group, GroupMetadata)]
        columns: dict[str, Any] = {}
        if self._names & {"entropy", "token_entropy"}:
            columns |= self._entropies(own, temperature)
        if "answer_logprobs" in self._names:
            columns |= self._answers(own)
        ranks = ranks_of(self._model)
        if ranks.count == 1 or not columns:
            return columns
        pieces = zip((group.ordinal for group in own), split_columns(columns, own), strict=True)
        every = {ordinal: piece for held in ranks.gathered(dict(pieces)) for ordinal, piece in held.items()}
        return join_columns([every[group.ordinal] for group in groups])

    def learn(self, groups: Sequence[TrajectoryGroup], credited: CreditResult) -> dict[str, float]:
        """Train the critics on credit, and return metrics."""
        learnt: dict[str, float] = {}
        for critic in self._critics.values():
            learnt |= critic.learn(groups, credited)
        return learnt | _describe_gain(credited)

    def state_dict(self) -> StateDict:
        """Return the state for a checkpoint."""
        drift = {"drift": self._drift.state_dict()} if "drift" in self._names else {}
        return drift | {name: critic.state_dict() for name, critic in self._critics.items()}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the critics' optimizers by their paths in :meth:`state_dict`."""
        return {f"{name}/optimizer": critic.optimizer for name, critic in self._critics.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned; call :meth:`begin` first if it contains a critic."""
        if "drift" in state:
            self._drift.load_state_dict(state["drift"])
        for name, critic in self._critics.items():
            critic.load_state_dict(state[name])

    def _entropies(self, groups: Sequence[TrajectoryGroup], temperature: float) -> dict[str, Floats]:
        segments = segments_of(groups)
        scores = score_by_role(
            self._models,
            [(segment.role, sampled_row(segment)) for segment in segments],
            temperature=temperature,
            tokens_per_microbatch=self._config.columns.tokens_per_microbatch,
        )
        of_token = np.concatenate([np.empty(0), *(row.entropies for row in scores)])
        num_tokens = [len(turn.completion.token_ids) for segment in segments for turn in segment.turns]
        return {"token_entropy": of_token, "entropy": turn_means(of_token, num_tokens)}

    def _answers(self, groups: Sequence[TrajectoryGroup]) -> dict[str, object]:
        settings = self._config.columns
        scores = score_answers(
            self._model,
            groups,
            self._renderer,
            template=settings.answer_template,
            scoring=settings.scoring,
            tokens_per_microbatch=settings.tokens_per_microbatch,
        )
        return {"answer_logprobs": scores.logprobs, "answer_lengths": scores.lengths}

    def _measured_drift(self, groups: Sequence[TrajectoryGroup], temperature: float) -> dict[str, float]:
        size = self._config.columns.tokens_per_microbatch
        drift = self._drift.measure(self._models, groups, temperature=temperature, tokens_per_microbatch=size)
        self._drift.remember(self._models, groups, temperature=temperature, tokens_per_microbatch=size)
        return drift


def _make_critics(
    config: TrainConfig, policy: CausalLM, names: frozenset[str], roles: Mapping[str, CausalLM]
) -> dict[str, Critic]:
    critics: dict[str, Critic] = {}
    seed = derive_seed(config.seed, "critic")
    if "q_value" in names:
        gamma = config.credit.estimator_options.gamma
        critics["critic"] = TwinCritic(policy, config.critic, gamma=gamma, seed=seed)
    elif names & {"value", "token_value"}:
        by_role = {"": policy, **roles} if config.critic.by_role else {None: policy}
        for role, model in by_role.items():
            of_role = derive_seed(config.seed, "critic", role) if role else seed
            critics[f"critic-{role}" if role else "critic"] = ValueCritic(
                model, config.critic, is_per_token="token_value" in names, seed=of_role, role=role
            )
    if "progress" in names:
        seed = derive_seed(config.seed, "progress")
        critics["progress"] = ProgressEstimator(policy, config.critic, seed=seed)
    return critics


def _describe_gain(credited: CreditResult) -> dict[str, float]:
    """Return the mean gain per turn with a gain, and the mean probability of the first reference at start and end."""
    table = credited.table
    if table.info_gain is None or table.answer_logprobs is None:
        return {}
    gains = table.info_gain[~np.isnan(table.info_gain)]
    levels = [level for level in table.answer_logprobs if level.size]
    return {
        "info_gain": float(gains.mean()) if len(gains) else 0.0,
        "answer_prob_first": float(np.mean([np.exp(level[0, 0]) for level in levels])) if levels else 0.0,
        "answer_prob_last": float(np.mean([np.exp(level[-1, 0]) for level in levels])) if levels else 0.0,
    }


def turn_means(of_token: Floats, num_tokens: Sequence[int]) -> Floats:
    """Average over each turn's tokens, ``[N]``; 0 for a turn without tokens.

    Example:
        >>> turn_means(np.array([1.0, 3.0, 5.0]), [2, 0, 1]).tolist()
        [2.0, 0.0, 5.0]
    """
    counts = np.asarray(num_tokens, dtype=np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    sums = np.bincount(rows, weights=of_token, minlength=len(counts))
    return np.asarray(sums / np.maximum(counts, 1), dtype=np.float64)


# ------------------------------------ SPO's drift: the change of the policy on each task since the task's last rollout


class DriftMeter:
    """A store of the last response to each task; it measures ``mean |log-prob then - log-prob now|`` over its tokens.

    Both log-probabilities come from the trainer's model, as in the released code. Those of the inference engine differ
    from them even with equal weights, which would count as drift.

    The response is the first valid member of the task's last group, with all its context windows. Each window is read
    by the model of the role that sampled it. With more than
    ``max_tasks`` tasks, the least recent ones are dropped, and their drift is 0 the next time.

    Each rank stores the responses that it played; of the others it knows that they exist.

    Source: "Single-stream Policy Optimization" and its code (verl-recipe ``spo/spo_ray_trainer.py``).
    """

    def __init__(self, max_tasks: int, ranks: Ranks = Ranks()) -> None:  # noqa: B008  (frozen)
        self._max_tasks, self._ranks = max_tasks, ranks
        self._last: dict[str, tuple[tuple[str, Row], ...] | None] = {}
        """The last response to each task, its windows with their roles and their ``logprob`` at that time; None if
        another rank has it."""

    def measure(
        self,
        models: Mapping[str, CausalLM],
        groups: Sequence[TrajectoryGroup],
        *,
        temperature: float,
        tokens_per_microbatch: int,
    ) -> dict[str, float]:
        """Return the drift under the current weights for each task of the groups that has a stored response, by key."""
        known = [key for key in dict.fromkeys(task_keys(groups)) if key in self._last]
        here = {key: then for key in known if (then := self._last[key]) is not None}
        rows = [window for then in here.values() for window in then]
        made = score_by_role(models, rows, temperature=temperature, tokens_per_microbatch=tokens_per_microbatch)
        scores = iter(made)
        own = {key: _mean_change([(each, next(scores).logprobs) for _, each in then]) for key, then in here.items()}
        every = {key: change for of_rank in self._ranks.gathered(own) for key, change in of_rank.items()}
        return {key: every[key] for key in known}

    def remember(
        self,
        models: Mapping[str, CausalLM],
        groups: Sequence[TrajectoryGroup],
        *,
        temperature: float,
        tokens_per_microbatch: int,
    ) -> None:
        """Store the groups' responses, with their log-probabilities under the current weights."""
        spoken: dict[str, list[tuple[str, Row]] | None] = {}
        for key, group in zip(task_keys(groups), groups, strict=True):
            first = next((member for member in group.valid if member.turns), None)
            if first is not None:
                spoken.pop(key, None)
                is_here = not isinstance(group, GroupMetadata)
                windows = first.segments if is_here else ()  # another rank has the tokens of an outline
                spoken[key] = [(one.role, sampled_row(one)) for one in windows] if is_here else None
        rows = [row for own in spoken.values() for row in own or ()]
        made = score_by_role(models, rows, temperature=temperature, tokens_per_microbatch=tokens_per_microbatch)
        scores = iter(made)
        for key, own in spoken.items():
            self._last.pop(key, None)
            self._last[key] = (
                None
                if own is None
                else tuple((role, replace(row, columns={"logprob": next(scores).logprobs})) for role, row in own)
            )
        for key in list(self._last)[: max(0, len(self._last) - self._max_tasks)]:
            del self._last[key]

    def state_dict(self) -> StateDict:
        """Return plain dicts, lists and numbers: the responses of all ranks."""
        here = {key: then for key, then in self._last.items() if then is not None}
        every = {key: then for of_rank in self._ranks.gathered(here) for key, then in of_rank.items()}
        return {
            key: [
                {
                    "token_ids": row.token_ids,
                    "at": tuple(row.positions.tolist()),
                    "logprobs": tuple(row.columns["logprob"].tolist()),
                    **({"role": role} if role else {}),
                }
                for role, row in every[key]
            ]
            for key in self._last
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self._last = {
            key: tuple(
                (
                    row.get("role", ""),
                    Row(
                        token_ids=tuple(row["token_ids"]),
                        positions=np.array(row["at"], np.int64),
                        columns={"logprob": np.array(row["logprobs"], np.float64)},
                    ),
                )
                for row in rows
            )
            if at % self._ranks.count == self._ranks.rank
            else None
            for at, (key, rows) in enumerate(state.items())
        }


def task_keys(groups: Sequence[TrajectoryGroup]) -> tuple[str, ...]:
    """Return the key of each group's task, which is the same in every batch."""
    keys: tuple[str, ...] = recorded_columns(groups, ["group_keys"])["group_keys"]
    return keys


def per_turn(groups: Sequence[TrajectoryGroup], of_task: Mapping[str, float]) -> Floats:
    """Expand a number per task to a column of turns ``[N]``, with 0 for tasks without a number."""
    return np.array(
        [
            of_task.get(key, 0.0)
            for key, group in zip(task_keys(groups), groups, strict=True)
            for trajectory in group.valid
            for _ in trajectory.turns
        ],
        dtype=np.float64,
    )


def _mean_change(pairs: Sequence[tuple[Row, Floats]]) -> float:
    changes = np.concatenate([np.abs(then.columns["logprob"] - now) for then, now in pairs])
    return float(changes.mean()) if len(changes) else 0.0
