"""Settings of a judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from agentgym.engine import ENDPOINT
from agentgym.errors import ConfigError
from agentgym.settings import Count, NonNegative, Range, Settings, check_ranges

if TYPE_CHECKING:
    from agentgym.trainers.engines.openai.endpoint import Endpoint

RUBRIC = (
    "How well does the agent reach the goal that its first message states? An episode that reaches it is better than "
    "one that does not; of two that do, the shorter one is better; steps towards the goal count for something."
)


FAULTS = (
    "Score 1 for a turn that is right: the agent could take it, and it brings the goal nearer or finds out what it "
    "needs. Score 0 for a turn that is wrong: it contradicts what the agent was told, guesses, rests on an earlier "
    "mistake, or undoes progress. A final result that is right does not make a wrong turn right."
)
"""Rubric of ``faults``, if no other is given."""
ALL_FAULTS = (
    "Judge every turn by itself. Score 1 for a turn that is right: the agent could take it with what it knew then. "
    "Score 0 for a turn that is wrong in itself: it contradicts what the agent was told, guesses, calculates falsely, "
    "or undoes progress. A turn is not wrong because an earlier one was, or because the episode failed. A final result "
    "that is right does not make a wrong turn right."
)
"""Rubric of ``all_faults``, if no other is given."""
OF_FAULTS = {"faults": FAULTS, "all_faults": ALL_FAULTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig(Settings):
    """A model that grades episodes by a rubric. Its scores, from 0 to 1, become parts of the reward.

    Example:
        >>> JudgeConfig(model="openai:http://127.0.0.1:8000/v1?model=judge", grades="groups").is_on
        True
    """

    model: str = ""
    """An OpenAI-compatible endpoint, ``openai:URL?model=NAME``; ``agentgym serve-model MODEL`` starts one with a local
    model. Empty for no judge."""
    grades: Literal["episodes", "groups", "turns", "faults", "all_faults"] = "episodes"
    """``episodes``: grade each episode separately. ``groups``: grade all episodes of a group in comparison, without a
    reference (ART's RULER). ``turns``: grade every turn of an episode, as process rewards. ``faults``: look for the
    first wrong turn; a success with one loses ``weight`` (FAPO's flawed positives), and credit may split failures at it
    (SCOPE). ``all_faults``: mark every wrong turn, and pay nothing; credit reads the marks (CAPO)."""
    rubric: str = RUBRIC
    """The criteria of the judge, in words."""
    weight: float | None = None
    """Reward of a score of 1; with ``faults`` what a flawed success loses, FAPO's lambda. None: 1, and 0.5 with
    ``faults``: FAPO's lambda is 1 where outcomes are -1 and 1, and half of the range where they are 0 and 1."""
    role: Literal["outcome", "process"] = "outcome"
    """Role of the reward part of an episode; those of turns are process rewards."""
    wrong_below: Annotated[float, Range(above=0, at_most=1)] = 0.5
    """``faults``: a turn is wrong if the mean of its scores over the votes is below this; ``all_faults``: each vote."""
    votes: Count = 1
    """Number of verdicts that are averaged. Each sees the episodes of a group in another order."""
    agreement: Literal["majority", "intersection", "union"] = "majority"
    """``all_faults``: votes that make a turn wrong: at least half, all, or one. A vote finds a turn wrong if its score
    is below ``wrong_below``."""
    temperature: NonNegative = 1.0
    max_new_tokens: Count = 1024
    num_tries: Count = 3
    """Largest number of answers per vote until one is a valid verdict."""
    max_chars: Annotated[int, Range(at_least=1000)] = 12_000
    """Largest length of an episode's transcript; longer ones lose turns in the middle."""
    num_requests: Count = 16
    """Number of concurrent requests."""
    structured: bool = True
    """Request an answer in the verdict's JSON schema (``response_format``), which most servers support."""

    def __post_init__(self) -> None:
        if not self.model:
            if self.grades != "episodes":
                raise ConfigError(
                    f"judge.grades={self.grades} does nothing without a judge: set judge.model=openai:URL?model=NAME"
                )
            return
        if not self.model.startswith(ENDPOINT):
            raise ConfigError(f"judge.model must be an endpoint, openai:URL?model=NAME, got {self.model!r}")
        if self.pays == 0 or not self.rubric.strip():
            raise ConfigError("judge.weight must not be 0, and judge.rubric must say something")
        check_ranges(self, "judge.")
        if self.grades == "all_faults" and (self.weight, self.role) != (None, "outcome"):
            raise ConfigError(
                "judge.grades=all_faults pays nothing, so judge.weight and judge.role change nothing: leave them out, "
                "and set the weights of credit.estimator=capo"
            )
        if self.grades not in OF_FAULTS and self.wrong_below != 0.5:
            raise ConfigError("judge.wrong_below is about wrong turns: set judge.grades=faults or all_faults")
        if self.grades != "all_faults" and self.agreement != "majority":
            raise ConfigError("judge.agreement is about votes on wrong turns: set judge.grades=all_faults")
        if self.endpoint.tools != "server":
            raise ConfigError("judge.model: a judge takes no tools; leave tools= out of its address")

    @property
    def is_on(self) -> bool:
        """True if there is a judge."""
        return bool(self.model)

    @property
    def pays(self) -> float:
        """The weight, or its default if none is given."""
        return (0.5 if self.grades == "faults" else 1.0) if self.weight is None else self.weight

    @property
    def looks_for_faults(self) -> bool:
        """True if the judge marks wrong turns: the first of an episode, or all."""
        return self.is_on and self.grades in OF_FAULTS

    @property
    def criteria(self) -> str:
        """The rubric that the judge is told."""
        return OF_FAULTS.get(self.grades, RUBRIC) if self.rubric == RUBRIC else self.rubric

    @property
    def endpoint(self) -> Endpoint:
        """The address of the judge."""
        from agentgym.trainers.engines.openai.endpoint import (
            parse_endpoint,  # brings what runs without a judge never use
        )

        return parse_endpoint(self.model.removeprefix(ENDPOINT))
