"""The composition rules: combinations of components that are refused or warned about, with number and reason.

The numbers are those of the table in ``docs/credit.md``. Every function takes plain names and flags, so that a trainer
can also ask about losses and corrections, which this package does not know. A function returns no finding, or an error
("E": the configuration is refused) or a warning ("W": printed at the start of a run).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from agentgym.errors import ConfigError

ORDER = "order of components"
SEQUENCE_LOSSES = ("gspo", "gmpo")


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that a composition breaks."""

    rule: str
    """Name of the rule; empty if the finding is that a component has no effect."""
    severity: Literal["E", "W"]
    message: str

    def __str__(self) -> str:
        return f"{self.message} ({self.rule})" if self.rule else self.message


Findings = tuple[Finding, ...]


def refuse_errors(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the warnings among the findings as text.

    Raises:
        ConfigError: there are errors; the message contains all of them.

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
    """Rule 1: exactly one estimator computes the advantages; modulators may be stacked, estimators may not."""
    message = (
        f"estimator {estimator!r} comes with options of {options_of!r}: two estimators cannot both make the "
        "advantages; stack modulators instead"
    )
    return _when(options_of is not None and options_of != estimator, 1, "E", message)


def group_size(estimator: str, size: int, *, compares_groups: bool) -> Findings:
    """Rule 2: a group-relative estimator needs groups of two or more."""
    message = (
        f"estimator {estimator!r} compares the members of a group, so group_size must be at least 2, got {size}; "
        "estimators that do not compare members, such as turn_gae, work with 1"
    )
    return _when(compares_groups and size < 2, 2, "E", message)


def anchors(shared_share: float, *, starts_agree: bool) -> Findings:
    """Rule 7, checked on data: with history, counters or random ids in the state key no two turns share a state.

    Args:
        shared_share: share of turns in anchor groups of two or more.
        starts_agree: False if members of a group differ in their first state, which is equal by construction.
    """
    if not starts_agree:
        message = (
            "members of a group start in the same state, and their state keys differ: the key holds history, counters "
            "or random ids, so every turn is compared with itself alone; leave them out of the environment's "
            "state_key()"
        )
        return _when(True, 7, "E", message)
    message = (
        f"only {shared_share:.0%} of turns share their state with another turn of their group, so step-level credit "
        "has little effect: use a coarser state_key(), larger groups, or grpo"
    )
    return _when(shared_share < 0.2, 7, "W", message)


def group_filter(estimator: str, norm: str, metric: str, *, keeps_parts: bool) -> Findings:
    """Rule 8: a filter on summed rewards drops groups from which an estimator that keeps parts apart would learn."""
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
    """Rules 9 and 17: a selection takes group statistics over the members that its paper prescribes."""
    if selection == "void_turns" and statistics == "kept":
        message = (
            "the void-turn filter drops a trajectory's loss and keeps its reward in the statistics; leaving it out "
            "earlier changes the advantages of all other members: set statistics to 'full'"
        )
        return _when(True, 17, "E", message)
    message = (
        f"{selection} takes its statistics over the {published} members as published; {statistics!r} changes the "
        "baseline of all other members"
    )
    return _when(statistics != published, 9, "W", message)


def selection_size(selection: str, keep: int, size: int) -> Findings:
    """Rule 2: GRPO-RoC drops groups of fewer members than it keeps."""
    message = (
        f"{selection} keeps {keep} members and drops groups of fewer, so with group_size {size} nothing would train: "
        "sample about twice as many as keep"
    )
    return _when(selection == "roc" and keep > size, 2, "E", message)


def reference_answers(*, has_gain: bool, has_reference: bool, is_sampling_policy: bool = True) -> Findings:
    """Rule 10: information gain needs a reference answer, scored by the policy that sampled the rollouts."""
    message = "information gain is measured on a reference answer, and the tasks have none"
    missing = _when(has_gain and not has_reference, 10, "E", message)
    message = (
        "information gain is scored by another policy than the one that sampled the rollouts: the gains include the "
        "drift between the two"
    )
    return missing or _when(has_gain and not is_sampling_policy, 10, "W", message)


def needs_gain(estimator: str, shapers: Collection[str]) -> Findings:
    """Rule 10, within credit: the estimator ``igpo`` reads the column that the shaper ``information_gain`` makes."""
    message = "estimator 'igpo' reads the gain of a reference answer: add the shaper 'information_gain'"
    return _when(estimator == "igpo" and "information_gain" not in shapers, 10, "E", message)


def gated_gain(*, is_gated: bool, has_gain: bool) -> Findings:
    """Rule 11: gating removes the dense signal in failed groups, which is the purpose of information gain."""
    message = (
        "g_ra closes the gate on the information gain of failed trajectories, its main benefit: choose one, or leave "
        "'process' out of g_ra's priorities so that only format and cost are gated"
    )
    return _when(is_gated and has_gain, 11, "W", message)


def rewarded_length(source: str, remedy: str, *, is_paid: bool) -> Findings:
    """Rule 12: a reward per turn or call, summed over the trajectory, rewards length.

    Args:
        source: setting that pays the reward.
        remedy: setting that does not.
        is_paid: True if the reward is paid.
    """
    message = (
        f"{source} pays every turn or call, which sums up over an episode: long failures can earn more than short "
        f"successes; {remedy}"
    )
    return _when(is_paid, 12, "W", message)


def unbounded_gain(estimator: str, *, is_merged: bool) -> Findings:
    """Rule 10: a gain in log-probabilities has no bound, so summed with the outcome it can outweigh it."""
    message = (
        f"information_gain adds differences of log-probabilities, which have no bound, to rewards of {estimator!r}: "
        "a failure can earn more than a success; set its mode to prob_diff, or use estimator igpo"
    )
    return _when(is_merged, 10, "W", message)


def segment_statistics(unit: str) -> Findings:
    """Rule 13: group statistics count trajectories, not segments."""
    message = (
        "statistics over segments count a trajectory once per context window, so long ones outweigh the others: "
        "set statistics_unit to 'trajectory'"
    )
    return _when(unit == "segment", 13, "E", message)


def prefix_weight(attribution: str, count: str) -> Findings:
    """Rule 14: tokens of a shared prefix are either replicated or averaged, not both."""
    message = (
        f"shared-prefix attribution {attribution!r} with count {count!r}: turns that branches share are either "
        "replicated with each branch's advantage (soft, replicate) or averaged and counted once (hard, once)"
    )
    return _when((attribution, count) not in (("soft", "replicate"), ("hard", "once")), 14, "E", message)


def pooled_roles(estimator: str, *, are_pooled: bool) -> Findings:
    """Rule 15: players of a zero-sum game must not share a group, because their results sum to 0."""
    message = (
        f"estimator {estimator!r} pools the players of a game in one group, where zero-sum results cancel and role "
        "baselines are lost: use 'rae'"
    )
    return _when(are_pooled, 15, "E", message)


def entropy_signs(modulators: Collection[str], raise_entropy: Collection[str]) -> Findings:
    """Rule 18: EMPG amplifies confident turns, an entropy bonus rewards uncertain ones.

    Args:
        modulators: names of the modulators.
        raise_entropy: names of the parts of the loss that raise the entropy.
    """
    against = " and ".join(sorted(raise_entropy))
    message = f"empg amplifies confident turns while {against} rewards entropy: opposite signs; use one of them"
    return _when("empg" in modulators and bool(against), 18, "W", message)


def baseline_once(estimator: str, part: str, *, subtracts_mean: bool) -> Findings:
    """Rule 19: a baseline of the loss must not be subtracted from an advantage that already has a baseline.

    Args:
        part: the part of the loss that subtracts a baseline; empty if none does.
    """
    message = (
        f"the baseline of {part} on {estimator!r}, which subtracts a baseline of its own: it would act twice; set "
        "credit.estimator=returns"
    )
    return _when(bool(part) and subtracts_mean, 19, "E", message)


def modulator_order(modulators: Collection[str], *, estimator_granularity: str) -> Findings:
    """Rules of order: SALT runs before EMPG, and components per turn run before components per token."""
    names = list(modulators)
    wrong = "empg" in names and "salt" in names and names.index("empg") < names.index("salt")
    order = _when(wrong, ORDER, "E", "salt merges trajectory advantages, so it must come before empg")
    late = "aepo_advantage" in names and names[-1] != "aepo_advantage"
    message = "aepo_advantage works per token, which modulators of turns would undo: put it last"
    tokens = _when(late, ORDER, "E", message)
    of_turns = [name for name in names if name != "aepo_advantage"]
    message = (
        f"{', '.join(of_turns)} works on turns and would undo the estimator's token-level advantages: leave it out, or "
        "use an estimator per turn"
    )
    lost = _when(estimator_granularity == "token" and bool(of_turns), ORDER, "E", message)
    return order + tokens + lost


def gate_and_critic(*, is_gated: bool, estimator: str) -> Findings:
    """Rule of targets: G-RA's gate reads the end of the episode, which a one-step target must not contain."""
    message = (
        "g_ra's gate looks at the end of the episode, so archer's one-step targets contain the future: leave g_ra out"
    )
    return _when(is_gated and estimator == "archer", "one-step targets", "W", message)


def idle_component(name: str, reason: str) -> Findings:
    """Find a component that has no effect with its settings; ``reason`` is empty if it has one."""
    return _when(bool(reason), "", "E", f"{name}: {reason}, so it changes nothing; leave it out")


def idle_in_group(name: str, keep: int, size: int) -> Findings:
    """Find a component that has no effect in groups of this size."""
    alone = name in ("salt", "dynamic_sampling") and size < 2
    message = f"{name} compares the members of a group, and with group_size {size} there is one: leave it out"
    lonely = _when(alone, "", "E", message)
    message = (
        f"{name} keeps {keep} members of {size}, so it drops none: raise group_size above {keep}, or leave {name} out"
    )
    return lonely or _when(name == "pods" and keep >= size, "", "E", message)


def idle_step_part(estimator: str, step_weight: float) -> Findings:
    """Find GiGPO without its step-level part."""
    message = "step_weight is 0: gigpo gives every turn of an episode the same advantage, as grpo does"
    return _when(estimator == "gigpo" and step_weight == 0, "", "W", message)


# ----------------------------------------------------------------------------------- losses and their corrections


def one_update(*, is_on_policy: bool, parts: Collection[str], gate: str) -> Findings:
    """Find parts of the loss that have no effect because every importance ratio is 1.

    Args:
        is_on_policy: True if each step makes one update, and ratios compare with the trainer's policy before it.
        parts: parts of the loss that compare the policy with itself before a step's first update.
        gate: name of the loss if the user chose its clip or gate, else empty.
    """
    way_out = "set loss.num_updates or loss.num_epochs above 1, or loss.mode=bypass"
    message = f"{', '.join(parts)} acts from a step's second update on, and there is one: {way_out}"
    idle = _when(is_on_policy and bool(parts), "", "E", message)
    message = f"with one update per step every ratio is 1, so the gate of {gate} never acts: {way_out}"
    return idle or _when(is_on_policy and bool(gate), "", "W", message)


def rollout_correction(mode: Literal["bypass", "decoupled"], corrections: Collection[str]) -> Findings:
    """Rule 3: the mismatch between engine and trainer is corrected exactly once.

    Args:
        mode: ``bypass`` takes the engine's log-probs as the old policy's, ``decoupled`` recomputes them.
        corrections: names of weights and masks on ``pi_old / mu`` (token_tis, seq_tis, icepop, ...).
    """
    names = ", ".join(sorted(corrections))
    message = (
        f"in bypass mode the PPO ratio already holds pi_theta / mu; {names} would count it twice: remove it, or set "
        "loss.mode=decoupled"
    )
    twice = _when(mode == "bypass" and bool(corrections), 3, "E", message)
    message = (
        "decoupled mode needs a correction (token_tis, ...) where the engine's log-probs differ from the trainer's"
    )
    return twice or _when(mode == "decoupled" and not corrections, 3, "W", message)


def bounded_weights(loss: str, mode: Literal["bypass", "decoupled"], *, is_bounded: bool, may_clip: bool) -> Findings:
    """Find losses that one token can decide, since its weight has no bound.

    In decoupled mode the ratio is 1 in a step's first update, and stays near 1. In bypass mode it compares with the
    engine, perhaps with older weights, and a PPO ratio is not clipped above 1 at a negative advantage.

    Args:
        loss: name of the loss.
        is_bounded: True if the loss limits the ratio at negative advantages, too.
        may_clip: True if the loss has a dual clip.
    """
    way_out = "set loss.dual_clip=3" if may_clip else "set loss.mode=decoupled, or loss.kind=dapo"
    message = (
        f"in bypass mode {loss} weighs tokens with a negative advantage by pi_theta / mu without a bound, so one token "
        f"that the engine found unlikely can decide an update: {way_out}"
    )
    return _when(mode == "bypass" and not is_bounded, "", "W", message)


def ratio_level(loss: str, level: Literal["token", "turn", "sequence"], granularity: str) -> Findings:
    """Rule 5: a loss with one ratio per sequence needs one advantage per sequence.

    Args:
        loss: name of the loss; the rule applies to sequence-level ones only.
        level: the unit that the loss treats as a sequence.
        granularity: granularity of the advantages, see :attr:`config.CreditConfig.granularity`.
    """
    if loss not in SEQUENCE_LOSSES:
        return ()
    message = (
        f"{loss} with advantages per token: its sequence ratio needs one advantage per sequence; use a token-level "
        "loss, or an estimator per trajectory or turn"
    )
    tokens = _when(granularity == "token", 5, "E", message)
    message = (
        f"{loss} over whole trajectories with advantages per turn: take the turn as its sequence (ratio_level=turn)"
    )
    return tokens or _when(granularity == "turn" and level != "turn", 5, "E", message)


def one_gate(loss: str, gates: Collection[str]) -> Findings:
    """Rule 6: a loss has one gate, the function that limits the importance ratio.

    Args:
        loss: name of the loss.
        gates: names of further gates that are on, of ``ppo_clip``, ``dual_clip``, ``decoupled``.
    """
    refused = {"sapo": {"ppo_clip", "dual_clip", "decoupled"}, "cispo": {"dual_clip"}}.get(loss, set())
    both = sorted(refused & set(gates))
    return _when(bool(both), 6, "E", f"{loss} is a gate of its own and cannot be joined with {', '.join(both)}")
