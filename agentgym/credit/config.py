"""The configuration of credit: shapers, one estimator, modulators and selections, checked when it is made.

The order of the pipeline::

    selections over raw rewards -> shapers -> estimator -> modulators -> selections over advantages

Ways of *making* rollouts (branching, replay, allocators) come before all of it and hand over columns
(``parent``, ``branch_turn``, ...); losses and corrections come after and read advantages and weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from agentgym.credit import rules
from agentgym.credit.component import (
    ESTIMATORS,
    MODULATORS,
    SELECTIONS,
    SHAPERS,
    CreditComponent,
    Granularity,
    Shared,
)
from agentgym.credit.modulators.branches import SharedPrefixOptions
from agentgym.credit.selections.filters import DynamicSamplingOptions
from agentgym.credit.shapers.penalties import InvalidCallOptions
from agentgym.errors import ConfigError
from agentgym.plugins import ByKind, Options, read_options
from agentgym.settings import Fraction, NonNegative, Settings, check_ranges

STATE_COMPARING = ("gigpo", "hgpo")
FLAT_KEYS = ("norm", "gamma", "step_weight", "statistics_unit")
"""Shared keys: each is read only by the estimators whose function has a parameter of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig(Settings):
    """The components of credit and their settings. Invalid combinations raise ``ConfigError`` with the rule's number.

    Example:
        >>> from agentgym.credit.modulators.salt import SaltOptions
        >>> from agentgym.credit.shapers.gating import GraOptions
        >>> config = CreditConfig(estimator="gigpo", shapers=(GraOptions(),), modulators=(SaltOptions(),))
        >>> [warning[:20] for warning in config.warnings]
        ['g_ra is experimental', 'salt is experimental']
    """

    estimator: str = "gigpo"
    """Name of a registered estimator, ``module:name`` or ``file.py:name``."""
    norm: Literal["mean_std_norm", "mean_norm"] = "mean_std_norm"
    """Divide by the group's standard deviation or not; read by grpo, gigpo, hgpo and returns."""
    gamma: Fraction = 0.95
    """Discount per turn; read by grpo, gigpo and hgpo. Other estimators have a discount among their options."""
    step_weight: NonNegative = 1.0
    """GiGPO's and UI-S1's weight of the step-level part."""
    statistics_unit: Literal["turn", "trajectory"] = "turn"
    """GiGPO's unit of the episode-level mean and deviation."""
    invalid_penalty: NonNegative = 0.0
    """Penalty of an invalid turn. GiGPO and HGPO subtract it from that turn, others from the trajectory's return."""
    options: Annotated[Any, ByKind(ESTIMATORS, is_late=True)] | None = None
    """The estimator's own settings, as an options object or a mapping (``kind`` may be omitted); None: its defaults."""
    shapers: tuple[Annotated[Any, ByKind(SHAPERS)], ...] = ()
    """Settings of each shaper. ``kind`` names the component, here and in modulators and selections."""
    modulators: tuple[Annotated[Any, ByKind(MODULATORS)], ...] = ()
    selections: tuple[Annotated[Any, ByKind(SELECTIONS)], ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)
        self._check_flat_keys()
        if isinstance(self.options, Mapping):
            made = read_options(ESTIMATORS, self.estimator, self.options, "options")
            object.__setattr__(self, "options", made)
        for name in ("shapers", "modulators", "selections"):
            stage = getattr(self, name)
            if other := [part for part in stage if not isinstance(part, Options)]:
                raise ConfigError(
                    f"{name} holds {other[0]!r}, expected the options of a component, as in (SpaOptions(),) or "
                    "(Named(kind='file.py:name'),); agentgym.trainers.config.overrides reads dicts"
                )
            kinds = [part.kind for part in stage]
            if twice := sorted({kind for kind in kinds if kinds.count(kind) > 1}):
                raise ConfigError(f"{', '.join(twice)} is named twice; list each component once")
        if self.invalid_penalty and self.shaper("invalid_call"):
            raise ConfigError("invalid_penalty and the shaper invalid_call are the same thing: set one of them")
        rules.refuse_errors(self.findings())

    def _check_flat_keys(self) -> None:
        component = ESTIMATORS[self.estimator]
        for field in fields(self):
            if field.name not in FLAT_KEYS or component.reads(field.name):
                continue
            if getattr(self, field.name) != field.default:
                of = ", ".join(name for name, known in ESTIMATORS.items() if known.reads(field.name))
                raise ConfigError(
                    f"{field.name} is a key of {of}; estimator {self.estimator!r} does not read it: set it back to "
                    f"{field.default!r}, or look for its own key in credit.options"
                )

    def shaper(self, kind: str) -> Any:
        """Return the settings of the shaper of that kind, None if the configuration has no such shaper."""
        return next((part for part in self.shapers if part.kind == kind), None)

    @property
    def subtracts_penalty(self) -> bool:
        """True if the estimator, not a shaper, subtracts the penalty of invalid calls."""
        return self.estimator in ("grpo", *STATE_COMPARING) and self.shaper("g_ra") is None

    @property
    def shared(self) -> Shared:
        """The shared keys that the estimator receives. Its penalty is 0 where a shaper penalises invalid calls."""
        penalty = self.invalid_penalty if self.subtracts_penalty else 0.0
        if self.subtracts_penalty and self.estimator in STATE_COMPARING and (shaper := self.shaper("invalid_call")):
            penalty = shaper.penalty
        return Shared(
            norm=self.norm,
            gamma=self.gamma,
            step_weight=self.step_weight,
            statistics_unit=self.statistics_unit,
            invalid_penalty=penalty,
        )

    @property
    def estimator_options(self) -> Any:
        """The estimator's settings, or its defaults if none are given."""
        made = ESTIMATORS[self.estimator].options
        return self.options if self.options is not None or made is None else made()

    @property
    def effective_shapers(self) -> tuple[Any, ...]:
        """The shapers that run.

        GiGPO and HGPO subtract the invalid-call penalty themselves; for other estimators a shaper does it. With the
        shaper ``g_ra`` it is always a shaper, because G-RA cannot gate a penalty that the estimator subtracts.
        """
        if self.subtracts_penalty and self.estimator in STATE_COMPARING:
            return tuple(part for part in self.shapers if part.kind != "invalid_call")
        if self.invalid_penalty and not self.subtracts_penalty:
            return (InvalidCallOptions(penalty=self.invalid_penalty), *self.shapers)
        return self.shapers

    def components(self) -> tuple[tuple[CreditComponent, Any], ...]:
        """Return every component with its settings: shapers, estimator, modulators, selections."""
        return (
            *((SHAPERS[part.kind], part) for part in self.effective_shapers),
            (ESTIMATORS[self.estimator], self.estimator_options),
            *((MODULATORS[part.kind], part) for part in self.modulators),
            *((SELECTIONS[part.kind], part) for part in self.selections),
        )

    def columns(self) -> tuple[str, ...]:
        """Return the optional columns of the table that the components read."""
        names = (name for component, options in self.components() for name in component.columns(options))
        return tuple(dict.fromkeys(names))

    @property
    def granularity(self) -> Granularity:
        """The smallest unit within which advantages are constant, which ``rules.ratio_level`` needs."""
        units: list[Granularity] = ["trajectory", "turn", "token"]
        return max((component.granularity for component, _ in self.components()), key=units.index)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to print at the start: risky combinations, and components reconstructed from an abstract."""
        experimental = (component.note for component, _ in self.components() if component.note)
        return (*rules.refuse_errors(self.findings()), *experimental)

    def findings(self) -> rules.Findings:
        """Return all composition rules that this configuration breaks."""
        entry = ESTIMATORS[self.estimator]
        shapers = tuple(part.kind for part in self.shapers)
        gate = self.shaper("g_ra")
        has_gain = self.estimator == "igpo" or "information_gain" in shapers
        names = tuple(part.kind for part in self.modulators)
        return (
            *rules.one_estimator(entry.name, None if self.options is None else ESTIMATORS[self.options.kind].name),
            *rules.needs_gain(self.estimator, shapers),
            *rules.gated_gain(is_gated=gate is not None and "process" in gate.priorities, has_gain=has_gain),
            *rules.gate_and_critic(is_gated=gate is not None, estimator=self.estimator),
            *self._rewards_of_length(),
            *rules.segment_statistics(getattr(self.options, "statistics_unit", "")),
            *rules.pooled_roles(self.estimator, are_pooled="spiral_split" in shapers and self._pools_roles(entry)),
            *rules.modulator_order(names, estimator_granularity=entry.granularity),
            *rules.idle_step_part(self.estimator, self.step_weight),
            *(
                finding
                for component, options in self.components()
                if options is not None
                for finding in rules.idle_component(component.name, options.idle())
            ),
            *self._option_findings(entry),
        )

    def _pools_roles(self, entry: CreditComponent) -> bool:
        own = next(options for component, options in self.components() if component is entry)
        return entry.compares_groups and "role" not in entry.columns(own)

    def _rewards_of_length(self) -> rules.Findings:
        """Return findings on shapers whose reward grows with the number of turns, or that outweigh the outcome."""
        bonus, progress, gain = (self.shaper(kind) for kind in ("tool_bonus", "spa", "information_gain"))
        is_merged = gain is not None and not ESTIMATORS[self.estimator].keeps_parts
        return (
            *rules.rewarded_length(
                "tool_bonus per=call", "set per=turn or trajectory", is_paid=bonus is not None and bonus.per == "call"
            ),
            *rules.rewarded_length(
                "spa's grounding", "set grounding=0", is_paid=progress is not None and progress.grounding > 0
            ),
            *rules.unbounded_gain(
                self.estimator, is_merged=is_merged and gain is not None and gain.mode == "log_prob_diff"
            ),
        )

    def _option_findings(self, entry: CreditComponent) -> rules.Findings:
        found: list[rules.Finding] = []
        for modulator in self.modulators:
            if isinstance(modulator, SharedPrefixOptions):
                found += rules.prefix_weight(modulator.attribution, modulator.count)
        for part in self.selections:
            if isinstance(part, DynamicSamplingOptions):
                found += rules.group_filter(self.estimator, self.norm, part.metric, keeps_parts=entry.keeps_parts)
            elif (chosen := getattr(part, "statistics", None)) is not None:
                found += rules.selection_statistics(part.kind, chosen, type(part)().statistics)
        return tuple(found)

    def check_group_size(self, group_size: int) -> None:
        """Check that the estimator and the selections can work with groups of this size (composition rule 2).

        Raises:
            ConfigError: they cannot; the message has the rule's reason.
        """
        compares = ESTIMATORS[self.estimator].compares_groups
        parts = [(part.kind, getattr(part, "keep", 0)) for part in (*self.selections, *self.modulators)]
        kept = [rules.selection_size(kind, keep, group_size) for kind, keep in parts]
        kept += [rules.idle_in_group(kind, keep, group_size) for kind, keep in parts]
        too_small = rules.group_size(self.estimator, group_size, compares_groups=compares)
        rules.refuse_errors((*too_small, *(finding for findings in kept for finding in findings)))
