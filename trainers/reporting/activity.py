"""Detection of components without effect: zero gradients, clips and corrections that never act."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.losses import correction
from agentgym.trainers.losses.component import CORRECTIONS, REGULARISERS
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import UpdateStatistics
from agentgym.trainers.reporting.course import Course
from agentgym.trainers.types import StateDict

PATIENCE = 20
"""Number of training steps without effect after which a component is reported."""
CHANGE = 1e-3
"""Smallest change of a weight that counts. Rounding in the engine and the trainer changes weights by about 1e-5."""
UNGATED = ("sapo",)
"""Losses whose gate acts on every token, so that no token is ever counted as clipped."""


def changed_by_corrections(
    logprob_old: Tensor, batch: Batch, config: LossConfig, facts: UpdateStatistics
) -> dict[str, float]:
    """Return, for each correction, the number of a micro-batch's tokens whose weight it changes from 1."""
    rho = correction.log_rho(logprob_old, batch["logprob_rollout"])
    found = {}
    for options in config.corrections:
        prepared = facts.of(CORRECTIONS[options.kind], batch)
        is_changed = (correction.weight_of(rho, batch, options, prepared) - 1).abs() > CHANGE
        if prepared.get("lr_scale", 1.0) < 1 - CHANGE:
            is_changed = torch.ones_like(is_changed)
        found[f"changed/{options.kind}"] = float(is_changed.sum())
    return found


class Activity:
    """Counters, per component, of consecutive training steps without effect.

    They cover the loss's clip, each correction, token mask and regulariser, and each credit component and strategy that
    reports its effect (``credit/changed/NAME``, ``strategy/changed/NAME``). Steps that trained no token do not count.

    Args:
        config: the run's loss.
        patience: steps without effect after which a note is due.
        known: arguments of :class:`TrainedSteps`.

    Example:
        >>> activity = Activity(LossConfig(corrections=()), patience=2)
        >>> step = {"trained_tokens": 8.0, "grad_norm": 1.0, "clip_fraction": 0.0}
        >>> [len(activity.watch(number, step)) for number in (1, 2, 3)], activity.metrics()["inactive_parts"]
        ([0, 1, 0], 1.0)
    """

    def __init__(self, config: LossConfig, patience: int = PATIENCE, **known: bool) -> None:
        self._config, self._patience = config, patience
        self._idle: dict[str, int] = {}
        self._said: set[str] = set()
        self._has_zero_gradient = False
        self.trained = TrainedSteps(**known)

    def watch(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Count a step's metrics and return notes about them; each note occurs once in a run."""
        self.trained.add(metrics)
        num_tokens = metrics.get("trained_tokens", 0.0)
        self._has_zero_gradient = num_tokens > 0 and metrics["grad_norm"] == 0
        why = self.trained.collapse()
        lines = [f"note: {why}"] if why and self._is_new("collapse") else []
        if not num_tokens:
            why = self.trained.conclusion() if self.trained.num_steps >= self._patience else ""
            return lines + ([f"note: {why}"] if why and self._is_new("steps that train nothing") else [])
        for part, effect in self._effects(metrics).items():
            self._idle[part] = 0 if effect else self._idle.get(part, 0) + 1
        if metrics.get("num_reflections") and not metrics.get("num_hints") and self._is_new("reflections"):
            lines.append(
                f"note: step {step}: none of {metrics['num_reflections']:.0f} reflections named a turn and advised, "
                "so retries begin at the fault; a reflection has up to strategy.branching.max_new_tokens tokens"
            )
        if self._has_zero_gradient and self._is_new("zero gradient"):
            lines.append(
                f"note: the gradient of step {step} is 0 although {num_tokens:.0f} tokens were trained: see "
                "zero_advantage_share, correction_weight and clip_fraction of that step for the reason"
            )
        idle = [part for part, count in self._idle.items() if count >= self._patience]
        if idle and self.trained.has_no_success:  # the reason why they do nothing; they are named once there is success
            why = self.trained.why_no_success("so far")
            return lines + ([f"note: {why}"] if self._is_new("no success") else [])
        lines += [
            f"note: {part} changed nothing in {self._patience} training steps{_reason(part, self._config)}"
            for part in idle
            if self._is_new(part)
        ]
        return lines

    def say_once(self, warnings: Sequence[str]) -> list[str]:
        """Return the warnings that the run has not printed yet; warnings that differ only in numbers count as equal."""
        return [f"note: {warning}" for warning in warnings if self._is_new(re.sub(r"[0-9.]+", "#", warning))]

    def say_first(self, thing: str, line: str) -> list[str]:
        """Return a line about a topic the first time in a run, and nothing later."""
        return [f"note: {line}"] if self._is_new(thing) else []

    def metrics(self) -> dict[str, float]:
        """Return metrics: 1 if the latest step had a zero gradient, and the number of components without effect."""
        num_inactive = sum(count >= self._patience for count in self._idle.values())
        return {"zero_gradient": float(self._has_zero_gradient), "inactive_parts": float(num_inactive)}

    def state_dict(self) -> StateDict:
        """Return the state for a checkpoint."""
        return {"idle": dict(self._idle), "said": sorted(self._said), "trained": self.trained.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned; an empty state is that of a new run."""
        self._idle, self._said = dict(state.get("idle", {})), set(state.get("said", ()))
        self.trained.load_state_dict(state.get("trained", {}))

    def _effects(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the effect of each component in a step; 0 for none."""
        config = self._config
        clip = {} if config.kind in UNGATED else {f"the clip of loss.kind={config.kind}": metrics["clip_fraction"]}
        parts = [REGULARISERS[part.kind] for part in config.regularisers]
        terms = {f"the regulariser {part.name}": metrics.get(part.metric or part.name, 0.0) for part in parts}
        shares = {
            **{f"the correction {part.kind}": f"changed/{part.kind}" for part in config.corrections},
            **{f"the token mask {part.kind}": f"changed/{part.kind}" for part in config.token_masks},
            **{
                f"{part} {name.removeprefix(prefix)}": name
                for prefix, part in (("credit/changed/", "the credit component"), ("strategy/changed/", "the strategy"))
                for name in metrics
                if name.startswith(prefix)
            },
        }
        effects = clip | terms | {part: metrics.get(name, 0.0) for part, name in shares.items()}
        return effects | {
            f"the auxiliary loss {part.kind}": metrics.get(f"{part.kind}/loss", 0.0) for part in config.auxiliary_losses
        }

    def _is_new(self, thing: str) -> bool:
        is_new = thing not in self._said
        self._said.add(thing)
        return is_new


def _reason(part: str, config: LossConfig) -> str:
    if part.startswith("the clip") and config.mode == "decoupled" and not config.has_several_updates:
        return ": with one update per step ratios are 1; set loss.num_updates or loss.num_epochs above 1 for it to act"
    if part.startswith("the correction"):
        return ": the engine and the trainer agree about the tokens' probabilities"
    if part == "the regulariser llds" and not config.has_several_updates:
        return ": it acts from a step's second update on; set loss.num_updates or loss.num_epochs above 1"
    return ""


# ------------------------------------------ the number of RL steps that trained, and the likeliest reason if few did

_TRUNCATED = ("truncated_tokens", "truncated_turns")
AVERAGED = ("invalid_share", "success", "dropped/zero_variance", "dropped/too_few_valid", "cut_share", *_TRUNCATED)
MOST, FEWEST = 0.95, 0.02
"""Shares of turns, or of episodes, that count as nearly all and nearly none."""


class TrainedSteps:
    """Counters of the steps that trained, with averages that explain the others, and the highest success.

    Args:
        has_demos: True if the policy had a warm start, so that the advice is a longer one.
        has_example: True if prompts begin with a worked example, so that the advice does not name one.
        is_compact: True if calls are lines of the compact syntax, so that the advice does not name it.

    Example:
        >>> trained = TrainedSteps()
        >>> trained.add({"trained_tokens": 0.0, "invalid_share": 1.0, "success": 0.0})
        >>> trained.conclusion()[:47]
        '0 of 1 steps trained: 100% of turns are invalid'
    """

    def __init__(self, *, has_demos: bool = False, has_example: bool = False, is_compact: bool = False) -> None:
        self._has_demos, self._has_example, self._is_compact = has_demos, has_example, is_compact
        self.num_steps = self.num_trained = 0
        self._most_success = math.nan
        self._sums, self._all_sums = dict.fromkeys(AVERAGED, 0.0), dict.fromkeys(AVERAGED, 0.0)
        self._course = Course()

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add a step's metrics."""
        self.num_steps += 1
        self._course.add(metrics)
        # the oracle's episodes are no success of the policy, but they are reinforced
        success = 1.0 if metrics.get("num_demonstrations") else metrics.get("success", math.nan)
        if not success <= self._most_success and math.isfinite(success):
            self._most_success = success
        num_episodes = sum(value for name, value in metrics.items() if name.startswith("status/"))
        shares = {name: metrics.get(f"status/{name}", 0.0) / max(1.0, num_episodes) for name in _TRUNCATED}
        is_trained = metrics.get("trained_tokens", 0.0) > 0
        self.num_trained += is_trained
        for name in AVERAGED:
            value = shares.get(name, metrics.get(name, 0.0))
            for sums in (self._all_sums, *([] if is_trained else [self._sums])):
                sums[name] += value if math.isfinite(value) else 0.0

    @property
    def has_no_success(self) -> bool:
        """True if there were steps, and none of their episodes succeeded."""
        return self._most_success == 0

    def why_no_success(self, when: str) -> str:
        """Return a line about a run without any success, with advice."""
        mean = {name: total / max(1, self.num_steps) for name, total in self._all_sums.items()}
        if (limit := _limit(mean)) and mean["invalid_share"] < MOST:
            return f"no episode has succeeded in {self.num_steps} steps {when}: {limit}"
        return (
            f"no episode has succeeded in {self.num_steps} steps {when}, so there is no success to reinforce: the warm "
            f"start has to learn the task first; {self._teach()}, an oracle (oracle() of the environment) or easier "
            "tasks (env.kwargs)"
        )

    def closing(self, before: float | None, after: float | None) -> str:
        """Return a line about a run that ended without learning; empty if it trained and some episode succeeded.

        Args:
            before: success in the evaluation before RL.
            after: success in the evaluation after RL.
        """
        if why := self.collapse(before, after) or self.conclusion():
            return why
        return self.why_no_success("nor in an evaluation") if self.has_no_success and not before and not after else ""

    def collapse(self, before: float | None = None, after: float | None = None) -> str:
        """Return a line about a policy that fell during RL (:meth:`Course.collapse`); empty if it did not."""
        return self._course.collapse(before, after)

    def conclusion(self) -> str:
        """Return a line with the reason why fewer than half of the steps trained; empty if more did."""
        num_idle = self.num_steps - self.num_trained
        if 2 * self.num_trained >= self.num_steps or not num_idle:
            return ""
        return f"{self.num_trained} of {self.num_steps} steps trained: {self._reason(num_idle)}"

    def _reason(self, num_idle: int) -> str:
        mean = {name: total / num_idle for name, total in self._sums.items()}
        limit = _limit(mean)
        if mean["invalid_share"] >= MOST:  # a model that writes no calls meets limits, too
            return (
                f"{mean['invalid_share']:.0%} of turns are invalid; {self._teach()} or a model that knows tool calls "
                f"(model.path){f'; {limit}' if limit else ''}"
            )
        if limit:
            return limit
        if mean["dropped/too_few_valid"] > mean["dropped/zero_variance"]:
            return "groups have fewer than group.min_valid valid episodes; see the errors of the failed episodes"
        if mean["success"] >= 1 - FEWEST:
            return "all episodes succeed and earn the same; take harder tasks (env.kwargs)"
        if mean["success"] <= FEWEST:
            return (
                f"{mean['success']:.0%} of episodes succeed and the episodes of a group earn the same; "
                f"{self._teach()}, easier tasks (env.kwargs) or a larger group.group_size"
            )
        return "the episodes of a group earn the same; raise group.group_size or sampling.temperature"

    def _teach(self) -> str:
        example = "" if self._has_example else ", a worked example in the prompt (context.example_turns=1)"
        if self._has_demos:
            compact = "" if self._is_compact else ", calls in one line (model.codec=compact)"
            return f"give more demonstrations (sft.num_demos) or epochs (sft.num_epochs){compact}{example}"
        return f"give demonstrations (sft.num_demos, sft.files){example}"

    def state_dict(self) -> StateDict:
        """Return the state for a checkpoint."""
        return {
            "num_steps": self.num_steps,
            "num_trained": self.num_trained,
            "sums": dict(self._sums),
            "most_success": self._most_success,
            "all_sums": dict(self._all_sums),
            "course": self._course.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned; an empty state is that of a new run."""
        self.num_steps, self.num_trained = state.get("num_steps", 0), state.get("num_trained", 0)
        self._most_success = state.get("most_success", math.nan)
        self._sums = dict.fromkeys(AVERAGED, 0.0) | state.get("sums", {})
        self._all_sums = dict.fromkeys(AVERAGED, 0.0) | state.get("all_sums", {})
        self._course.load_state_dict(state.get("course", {}))


def _limit(mean: Mapping[str, float]) -> str:
    """Return the limit that ends nearly all episodes or completions without success; empty if none does.

    An invalid turn may use up a turn, so the limit of turns is the reason only where turns are valid.
    """
    if mean["success"] > FEWEST:
        return ""
    if mean["truncated_tokens"] >= MOST:
        return (
            f"{mean['truncated_tokens']:.0%} of episodes end at the limit of the context: raise "
            "model.max_context_tokens, or keep less in the prompt (context.policy=window)"
        )
    if mean["cut_share"] >= MOST:
        return f"{mean['cut_share']:.0%} of turns end at the limit of a completion: raise sampling.max_new_tokens"
    if mean["truncated_turns"] >= MOST and mean["invalid_share"] < MOST:
        return (
            f"{mean['truncated_turns']:.0%} of episodes end at the limit of turns: raise env.kwargs.max_turns, or take "
            "tasks that need fewer"
        )
    return ""
