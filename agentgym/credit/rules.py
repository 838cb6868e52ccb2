"""The composition rules, each with its number and its reason.

Every function takes plain names and facts, so that a trainer can ask about losses and corrections that this package
does not know. It gives no finding, or one: an error ("E", refuse) or a warning ("W", say it at start).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from agentgym.errors import ConfigError

SEQUENCE_LOSSES = ("gspo", "gmpo")
SUMMING_ESTIMATORS = (
    "grpo",
    "dr_grpo",
    "rloo",
    "loop",
    "opo",
    "mc_grpo",
    "reinforce_pp_baseline",
    "flow_grpo",
    "supo",
)
"""Estimators that look at the undiscounted sum of a trajectory's rewards alone."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that a composition breaks."""

    rule: str
    """Name of the rule, empty for a part that can change nothing."""
    severity: Literal["E", "W"]
    message: str

    def __str__(self) -> str:
        return f"{self.message} ({self.rule})" if self.rule else self.message


Findings = tuple[Finding, ...]


def refuse_errors(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The warnings among findings, as text.

    Raises:
        ConfigError: there are errors; the message has all of them.

    Example:
        >>> refuse_errors(gated_gain(is_gated=True, has_gain=True))[0][-21:]
        '(composition rule 11)'
    """
    found = tuple(findings)
    if errors := [str(finding) for finding in found if finding.severity == "E"]:
        raise ConfigError("; ".join(errors))
    return tuple(str(finding) for finding in found)


def _when(is_broken: bool, rule: int | str, severity: Literal["E", "W"], message: str) -> Findings:
    name = f"composition rule {rule}" if isinstance(rule, int) else rule
    return (Finding(name, severity, message),) if is_broken else ()


# ------------------------------------------------------------------------------------------------ credit's own


def one_estimator(estimator: str, options_of: str | None) -> Findings:
    """Rule 1: one estimator makes the advantages; modulators may be stacked, estimators may not."""
    message = (
        f"estimator {estimator!r} comes with options of {options_of!r}: two estimators cannot both make the "
        "advantages; stack modulators instead"
    )
    return _when(options_of is not None and options_of != estimator, 1, "E", message)


def group_size(estimator: str, size: int, *, compares_groups: bool) -> Findings:
    """Rule 2: a group-relative estimator needs company."""
    message = (
        f"estimator {estimator!r} compares the members of a group, so group_size must be at least 2, got {size}; "
        "GAE, reinforce_pp, spo and rae work with 1"
    )
    return _when(compares_groups and size < 2, 2, "E", message)


def anchors(shared_share: float, *, starts_agree: bool) -> Findings:
    """Rule 7, looked at on data: a state key with history, counters or random ids leaves every turn alone.

    Args:
        shared_share: share of turns in anchor groups of two or more.
        starts_agree: whether members of a group share their first state, as they do by construction.
    """
    if not starts_agree:
        message = (
            "members of a group start in the same state, and their state keys differ: the key holds history, counters "
            "or random ids, so every turn is compared with itself alone"
        )
        return _when(True, 7, "E", message)
    message = f"only {shared_share:.0%} of turns share their state with another: step-level credit hardly acts"
    return _when(shared_share < 0.2, 7, "W", message)


def group_filter(estimator: str, norm: str, metric: str, *, keeps_parts: bool) -> Findings:
    """Rule 8: a group with equal sums and different parts teaches an estimator that keeps parts apart."""
    message = (
        f"dynamic sampling on {metric!r} drops groups whose parts differ, from which {estimator!r} would learn: "
        "set its metric to 'components'"
    )
    parts = _when(keeps_parts and metric != "components", 8, "E", message)
    message = (
        f"dynamic sampling on the summed 'return' with {estimator!r} and standard deviations drops groups that differ "
        "in their parts and keeps groups that differ in shaping alone: filter on 'outcome' or 'components'"
    )
    is_summed = estimator == "grpo" and norm == "mean_std_norm" and metric == "return"
    return parts or _when(is_summed, 8, "E", message)


def selection_statistics(selection: str, statistics: str, published: str) -> Findings:
    """Rules 9 and 17: over whom group statistics are taken when trajectories are left out."""
    if selection == "void_turns" and statistics == "kept":
        message = (
            "the void-turn filter drops a trajectory's loss and keeps its reward in the statistics; leaving it out "
            "before changes everybody else's advantage"
        )
        return _when(True, 17, "E", message)
    message = (
        f"{selection} takes its statistics over the {published} members as published; {statistics!r} changes the "
        "baseline of all others"
    )
    return _when(statistics != published, 9, "W", message)


def selection_size(selection: str, keep: int, size: int) -> Findings:
    """Section 6.13: GRPO-RoC drops groups of fewer members than it keeps."""
    message = (
        f"{selection} keeps {keep} members and drops groups of fewer, so with group_size {size} nothing would train: "
        "sample about twice as many as keep"
    )
    return _when(selection == "roc" and keep > size, "section 6.13", "E", message)


def reference_answers(*, has_gain: bool, has_reference: bool, is_sampling_policy: bool = True) -> Findings:
    """Rule 10: information gain needs a reference answer, scored by the policy that sampled."""
    message = "information gain is measured on a reference answer, and the tasks have none"
    missing = _when(has_gain and not has_reference, 10, "E", message)
    message = "information gain is scored by another policy than the one that sampled: gains carry its drift"
    return missing or _when(has_gain and not is_sampling_policy, 10, "W", message)


def needs_gain(estimator: str, shapers: Collection[str]) -> Findings:
    """Rule 10, at home: the estimator ``igpo`` reads what the shaper ``information_gain`` makes."""
    message = "estimator 'igpo' reads the gain of a reference answer: add the shaper 'information_gain'"
    return _when(estimator == "igpo" and "information_gain" not in shapers, 10, "E", message)


def gated_gain(*, is_gated: bool, has_gain: bool) -> Findings:
    """Rule 11: gating kills the dense signal in failed groups, which is what information gain is for."""
    message = (
        "g_ra closes the gate on the information gain of failed trajectories, its main benefit: choose one, or leave "
        "'process' out of g_ra's priorities so that only format and cost are gated"
    )
    return _when(is_gated and has_gain, 11, "W", message)


def tool_count_bonus(estimator: str, *, is_per_call: bool) -> Findings:
    """Rule 12: a bonus per call, summed over the trajectory, pays for length."""
    message = (
        f"a bonus per call that {estimator!r} sums up undiscounted rewards long trajectories; pay it per trajectory"
    )
    return _when(is_per_call and estimator in SUMMING_ESTIMATORS, 12, "W", message)


def segment_statistics(unit: str) -> Findings:
    """Rule 13: segments are no trajectories of their own in group statistics."""
    message = "statistics over segments count a trajectory once per context window, so long ones outweigh the others"
    return _when(unit == "segment", 13, "E", message)


def prefix_weight(attribution: str, count: str) -> Findings:
    """Rule 14: shared-prefix tokens are weighted exactly once: replicated or averaged, not both."""
    message = (
        f"shared-prefix attribution {attribution!r} with count {count!r}: turns that branches share are either "
        "replicated with each branch's advantage (soft, replicate) or averaged and counted once (hard, once)"
    )
    return _when((attribution, count) not in (("soft", "replicate"), ("hard", "once")), 14, "E", message)


def pooled_roles(estimator: str, *, has_roles: bool, compares_groups: bool) -> Findings:
    """Rule 15: players of a zero-sum game in one group cancel each other's mean."""
    message = (
        f"estimator {estimator!r} pools the players of a game in one group, where zero-sum results cancel and role "
        "baselines are lost: use 'rae'"
    )
    return _when(has_roles and compares_groups and estimator != "m_grpo", 15, "E", message)


def entropy_signs(modulators: Collection[str], regularisers: Collection[str]) -> Findings:
    """Rule 18: EMPG amplifies confidence, an entropy bonus pays for its opposite."""
    against = sorted({"epo", "entropy"} & set(regularisers))
    message = f"empg amplifies confident turns while {' and '.join(against)} rewards entropy: opposite signs"
    return _when("empg" in modulators and bool(against), 18, "W", message)


def baseline_once(estimator: str, *, has_opob: bool, subtracts_mean: bool) -> Findings:
    """Rule 19: VCPO's baseline on an advantage that has one already."""
    message = (
        f"VCPO's OPOB baseline on {estimator!r}, which subtracts a baseline of its own: it would act twice; set "
        "credit.estimator=returns"
    )
    return _when(has_opob and subtracts_mean, 19, "E", message)


def modulator_order(modulators: Collection[str], *, estimator_granularity: str) -> Findings:
    """Section 6.1 and 0.3: SALT comes before EMPG, and what works per turn before what works per token."""
    names = list(modulators)
    wrong = "empg" in names and "salt" in names and names.index("empg") < names.index("salt")
    order = _when(wrong, "section 6.1", "E", "salt merges trajectory advantages, so it must come before empg")
    late = "aepo_advantage" in names and names[-1] != "aepo_advantage"
    message = "aepo_advantage works per token, which modulators of turns would undo: put it last"
    tokens = _when(late, "section 0.3", "E", message)
    of_turns = [name for name in names if name != "aepo_advantage"]
    message = f"{', '.join(of_turns)} works on turns and would undo the estimator's token-level advantages"
    lost = _when(estimator_granularity == "token" and bool(of_turns), "section 0.3", "E", message)
    return order + tokens + lost


def gate_and_critic(*, is_gated: bool, estimator: str) -> Findings:
    """Section 4: the gate knows the end, a one-step target must not."""
    message = "g_ra's gate looks at the end of the episode; archer's one-step targets then regress on the future"
    return _when(is_gated and estimator == "archer", "section 4", "W", message)


def idle_component(name: str, reason: str) -> Findings:
    """A component that can change nothing with its settings."""
    return _when(bool(reason), "", "E", f"{name}: {reason}, so it changes nothing; leave it out")


def idle_in_group(name: str, keep: int, size: int) -> Findings:
    """A component that can change nothing in groups of this size."""
    alone = name in ("salt", "dynamic_sampling") and size < 2
    message = f"{name} compares the members of a group, and with group_size {size} there is one: leave it out"
    lonely = _when(alone, "", "E", message)
    message = f"{name} keeps {keep} members of {size}: it leaves nobody out; sample more of them or leave it out"
    return lonely or _when(name == "pods" and keep >= size, "", "E", message)


def idle_step_part(estimator: str, step_weight: float) -> Findings:
    """GiGPO without its step-level part."""
    message = "step_weight is 0: gigpo gives every turn of an episode the same advantage, as grpo does"
    return _when(estimator == "gigpo" and step_weight == 0, "", "W", message)


# ----------------------------------------------------------------------------------- losses and their corrections


def one_update(*, is_on_policy: bool, parts: Collection[str], gate: str) -> Findings:
    """Return the parts that cannot act while every ratio is 1.

    Args:
        is_on_policy: one update per step, with ratios to the trainer's policy before it.
        parts: names of parts of the loss that compare with the policy before a step's first update.
        gate: name of the loss if its clip or gate was chosen, else empty.
    """
    way_out = "set loss.num_updates or loss.num_epochs above 1, or loss.mode=bypass"
    message = f"{', '.join(parts)} acts from a step's second update on, and there is one: {way_out}"
    idle = _when(is_on_policy and bool(parts), "", "E", message)
    message = f"with one update per step every ratio is 1, so the gate of {gate} never acts: {way_out}"
    return idle or _when(is_on_policy and bool(gate), "", "W", message)


def rollout_correction(mode: Literal["bypass", "decoupled"], corrections: Collection[str]) -> Findings:
    """Rule 3: the gap between engine and trainer is corrected once, and not twice.

    Args:
        mode: ``bypass`` takes the engine's log-probs as the old policy's, ``decoupled`` recomputes them.
        corrections: names of weights and masks on ``pi_old / mu`` (token_tis, seq_tis, icepop, ...).
    """
    names = ", ".join(sorted(corrections))
    message = f"in bypass mode the PPO ratio already holds pi_theta / mu; {names} would count it twice"
    twice = _when(mode == "bypass" and bool(corrections), 3, "E", message)
    message = "decoupled mode needs a correction (token_tis, ...) as long as the engine's log-probs differ"
    return twice or _when(mode == "decoupled" and not corrections, 3, "W", message)


def ratio_level(loss: str, level: Literal["token", "turn", "sequence"], granularity: str) -> Findings:
    """Rule 5: a sequence ratio needs an advantage that is constant on its sequence.

    Args:
        loss: name of the loss; only sequence-level ones are looked at.
        level: what the loss takes as a sequence.
        granularity: of the advantages, see :attr:`config.CreditConfig.granularity`.
    """
    if loss not in SEQUENCE_LOSSES:
        return ()
    message = f"{loss} with advantages per token: its sequence ratio needs one advantage per sequence"
    tokens = _when(granularity == "token", 5, "E", message)
    message = (
        f"{loss} over whole trajectories with advantages per turn: take the turn as its sequence (ratio_level=turn)"
    )
    return tokens or _when(granularity == "turn" and level != "turn", 5, "E", message)


def one_gate(loss: str, gates: Collection[str]) -> Findings:
    """Rule 6: one gate per loss.

    Args:
        gates: further gates that are on, of ``ppo_clip``, ``dual_clip``, ``decoupled``.
    """
    refused = {"sapo": {"ppo_clip", "dual_clip", "decoupled"}, "cispo": {"dual_clip"}}.get(loss, set())
    both = sorted(refused & set(gates))
    return _when(bool(both), 6, "E", f"{loss} is a gate of its own and cannot be joined with {', '.join(both)}")
