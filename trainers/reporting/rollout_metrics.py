"""Metrics of a step's rollouts and their credit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import get_args

from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.voids import suspicious_kinds, voids_of
from agentgym.trainers.data.samples import ZERO, FilteredGroup
from agentgym.types import CutReason, FinishReason, MalformedCall, Status, ToolCall, Trajectory

_TRUNCATED = (Status.TRUNCATED_TURNS, Status.TRUNCATED_TOKENS)


def describe_rollouts(verdicts: Sequence[FilteredGroup], version: int = 0) -> dict[str, float]:
    """Compute the metrics of one step's groups: success, returns, turns, statuses, credit and dropped groups.

    * ``success``, ``return``, ``num_turns``: means over new valid episodes that began at the start and had no hint. An
      episode of a game that was over before the policy's first move is left out.
    * ``forfeit_share``: share of these episodes whose game a player lost by breaking the rules or running out of room;
      only if there are several players.
    * ``truncated_success_share``: share of their successes that a limit of turns or tokens ended.
    * ``anchor_share``: share of turns whose state occurs in another turn of the group; ``anchor_size``: mean size of
      their anchor groups.
    * ``zero_advantage_share``: share of turns whose advantage is 0.
    * ``staleness_*``: versions between the policy that sampled a token and ``version``, the one that is trained; tokens
      of episodes that are trained again count.
    * ``num_cut``: members that were started and not needed; ``cut/*``: by reason; ``cut_tokens``: their sampled tokens.
    * ``num_calls``, ``malformed_calls``, ``thinking_tokens``: means per turn of parsed calls, calls that could not be
      parsed, and tokens of thinking.
    * ``cut_share``: share of completions that the token limit ended.
    * ``voids/ENV/KIND``: infrastructure failures by kind over all attempts; ``void_alarm``: kinds of action after which
      they are more frequent than after others (:func:`suspicious_kinds`).
    * ``num_patched``: turns per episode in which another action was played.
    * ``player/N/success``, ``player/N/return``: means over the episodes in which player N, counted from 0, had a turn;
      only if there are several players.
    * ``num_branches``, ``num_hints``, ``num_reflections``, ``num_replayed``, ``num_demonstrations``: branches, turns
      with a hint, retries after a reflection, episodes that are trained again, and episodes that the oracle played;
      ``num_feedback``: turns that a teacher commented on.
    * ``num_continued``, ``num_corrected``: turns of branches that begin with a part of their parent's turn, and turns
      that were replaced by a correction.

    Turns that a branch copied, and turns of episodes that are trained again or demonstrated, do not count in metrics
    about turns. A mean over nothing is NaN.
    """
    everyone = [t for verdict in verdicts for t in verdict.group.trajectories]
    valid = [t for t in everyone if t.status.is_evidence]
    unaided = [t for t in valid if t.is_unaided]
    turns = [turn for t in valid for turn in t.own_turns]
    anchor_sizes = [size for verdict in verdicts for size in verdict.credit.anchor_size.tolist()]
    shared = [size for size in anchor_sizes if size >= 2]
    advantages = [advantage for verdict in verdicts for advantage in verdict.credit.advantage.tolist()]
    trained = [turn for t in valid if not t.is_demonstration for turn in t.turns[t.branch_turn :]]
    ages = [version - sampled for turn in trained for sampled in turn.completion.policy_versions]
    cut = [member for verdict in verdicts for member in verdict.group.cut]
    cut_reasons = Counter(member.reason for member in cut)
    statuses = Counter(t.status for t in everyone)
    dropped = Counter(verdict.dropped for verdict in verdicts if verdict.dropped)
    return {
        "success": _mean([bool(t.success) for t in unaided]),
        "truncated_success_share": _mean([t.status in _TRUNCATED for t in unaided if t.success]),
        "return": _mean([t.reward or 0.0 for t in unaided]),
        "num_turns": _mean([len(t.turns) for t in unaided]),
        "invalid_share": _mean([not turn.is_valid for turn in turns]),
        "void_share": _mean([turn.is_void for turn in turns]),
        "num_calls": _mean([sum(isinstance(call, ToolCall) for call in turn.action.calls) for turn in turns]),
        "malformed_calls": _mean([sum(isinstance(call, MalformedCall) for call in t.action.calls) for t in turns]),
        "cut_share": _mean([turn.completion.finish_reason is FinishReason.LENGTH for turn in turns]),
        "thinking_tokens": _mean([turn.num_thinking_tokens for turn in turns]),
        "sampled_tokens": float(
            sum(turn.num_sampled_tokens for turn in turns) + sum(t.num_reflection_tokens for t in valid)
        ),
        "staleness_mean": _mean(ages),
        "staleness_max": float(max(ages, default=0)),
        "anchor_share": len(shared) / max(1, len(anchor_sizes)),
        "anchor_size": _mean(shared),
        "zero_advantage_share": _mean([abs(advantage) < ZERO for advantage in advantages]),
        "num_summaries": _mean([sum(turn.kind == "summary" for turn in t.turns) for t in valid]),
        "num_patched": _mean([sum(turn.played is not None for turn in t.turns) for t in valid]),
        "num_segments": _mean([len(t.segments) for t in valid]),
        "num_branches": float(sum(t.parent >= 0 for t in valid)),
        "num_hints": float(sum(bool(turn.hint) for turn in turns)),
        "num_continued": float(sum(turn.num_copied_tokens > 0 == turn.num_rescored_tokens for turn in turns)),
        "num_corrected": float(sum(turn.num_rescored_tokens > 0 for turn in turns)),
        "num_feedback": float(sum(bool(turn.feedback) for turn in turns)),
        "num_reflections": float(sum(t.num_reflection_tokens > 0 for t in valid)),
        "num_replayed": float(sum(t.replayed_step is not None for t in valid)),
        "num_demonstrations": float(sum(t.is_demonstration for t in valid)),
        "num_retries": float(sum(t.num_retries for t in everyone)),
        "void_alarm": float(len(suspicious_kinds(everyone))),
        "num_dropped_groups": float(sum(dropped.values())),
        "num_cut": float(len(cut)),
        "cut_tokens": float(sum(member.num_sampled_tokens for member in cut)),
        **{f"cut/{reason}": float(cut_reasons[reason]) for reason in get_args(CutReason)},
        **{f"dropped/{reason}": float(dropped[reason]) for reason in ("zero_variance", "too_few_valid")},
        **{f"status/{status}": float(statuses[status]) for status in Status},
        **_of_players(unaided, sorted({t.player for t in valid})),
        **{f"voids/{env}/{kind}": float(count) for (env, kind), count in sorted(voids_of(everyone).items())},
    }


def _of_players(episodes: Sequence[Trajectory], players: Sequence[int]) -> dict[str, float]:
    """Return success and return of each player, or nothing if there is one player."""
    played = [t for t in episodes if t.turns]
    if list(players) in ([], [0]):
        return {}
    of = {player: [t for t in played if t.player == player] for player in players}
    return {
        "forfeit_share": _mean([t.is_forfeit for t in played]),
        **{f"player/{player}/success": _mean([bool(t.success) for t in own]) for player, own in of.items()},
        **{f"player/{player}/return": _mean([t.reward or 0.0 for t in own]) for player, own in of.items()},
    }


def strategy_effects(strategies: Iterable[StrategyConfig], numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the effect of each strategy that changes episodes, from a step's metrics; 0 for none."""
    return {
        f"strategy/changed/{name}": numbers[number]
        for strategy in strategies
        for name, acts, number in (
            (strategy.branching.kind, strategy.branches, "num_branches"),
            (strategy.pruning.kind, strategy.prunes, "cut/pruned"),
            (strategy.guidance.kind, strategy.guides, _number_of_help(strategy)),
            (f"{strategy.branching.kind}'s reflection", strategy.reflects, "num_hints"),
            (strategy.replay.kind, strategy.replays, "num_replayed"),
        )
        if acts
    }


def _number_of_help(strategy: StrategyConfig) -> str:
    if strategy.demonstrates:
        return "num_demonstrations"
    return "num_feedback" if strategy.gives_feedback else "num_hints"


OF_EACH_ENV = ("success", "return", "num_turns", "invalid_share", "sampled_tokens", "num_dropped_groups")
"""Metrics that are also logged for each environment of a mixture."""


def describe_mixture(names: Sequence[str], verdicts: Sequence[FilteredGroup]) -> dict[str, float]:
    """Return :data:`OF_EACH_ENV` and the number of groups for each environment of a mixture, as ``ENV/METRIC``."""
    found: dict[str, float] = {}
    for name in filter(None, names):  # the environment of a run on one has none
        own = [verdict for verdict in verdicts if verdict.group.env_name == name]
        numbers = describe_rollouts(own)
        found[f"{name}/num_groups"] = float(len(own))
        found |= {f"{name}/{number}": numbers[number] for number in OF_EACH_ENV}
    return found


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
