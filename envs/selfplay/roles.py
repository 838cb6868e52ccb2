"""A proposer that makes a task and a solver that gets it: the two roles of a policy that makes its own tasks.

The environment checks a proposal by rule. An invalid proposal ends the episode. A valid one goes to the solver, which
sees the task alone. The solver's reward is its score, and the proposer's is one minus the solver's score. An invalid
proposal is a mistake of the policy and costs ``invalid_penalty``.

Sources: "Search Self-play: Pushing the Frontier of Agent Capability without Supervision" (``reward_type=1-acc``,
``format_penalty=0`` in the released ``train_ssp.sh``), and "Absolute Zero: Reinforced Self-play Reasoning with Zero
Data". Both average the solver's success over several attempts; an episode here has one attempt.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical
from agentgym.env.match_env import MatchEnv
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import EnvError, RewardError, ToolError, UsageError, require_known
from agentgym.settings import Range, check_number
from agentgym.tool import Tool, unknown_tool
from agentgym.types import Call, Message, Observation, RewardPart, RewardRole, ToolCall, ToolResult, ToolSpec

PROPOSER, SOLVER = 0, 1
Opponent = Literal["self", "oracle"]
OPPONENTS: Final = ("self", "oracle")
VALID, NO_PROPOSAL = "valid", "no_proposal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The state of an episode of two roles."""

    role: int = PROPOSER
    """The role that acts."""
    verdict: str = ""
    """``valid``, or the reason why the proposal is invalid; empty before there is one."""
    score: float = 0.0
    """The solver's score, 0 to 1."""
    num_turns: tuple[int, int] = (0, 0)
    """Turns that each role has taken."""
    said: tuple[Observation, Observation] = ((), ())
    """Newest messages to each role."""
    loser: int | None = None
    """The proposer of an invalid task, or the role that could not go on."""

    @property
    def is_handed_over(self) -> bool:
        """True if the proposer's part is over and the solver's begins or has begun."""
        return self.verdict == VALID


class SelfPlayEnv(ToolEnv, MatchEnv):
    """An environment in which a proposer makes a task by tool calls, and a solver solves it by tool calls.

    Subclasses set the match in ``start`` by :meth:`begin`, call :meth:`accept` or :meth:`reject` in the proposer's
    tools, call :meth:`settle` in the solver's, and implement :meth:`task_for_solver` and :meth:`oracle`.

    Each role has half of the turns, so that the proposer cannot use up those of the solver. A proposer that has taken
    all its turns without a proposal has made an invalid one. ``info["proposal"]`` holds the verdict.

    Args:
        opponent: ``self``: the policy has both roles; ``oracle``: the environment proposes, and the agent solves.
        invalid_penalty: subtracted from the proposer's reward for an invalid proposal.
        max_turns: turns of both roles together, at least 2.
        others: see the base classes.

    Raises:
        UsageError: a value is out of range, or there is no such opponent.
    """

    players: ClassVar[tuple[str, ...]] = ("proposer", "solver")
    only_for: ClassVar[Mapping[str, int]] = {"propose": PROPOSER, "answer": SOLVER}
    """The role of each tool that one role alone may call."""
    match = SinceReset[Match]()
    """The match of the current episode."""

    def __init__(
        self, *, opponent: Opponent = "self", invalid_penalty: float = 0.0, max_turns: int = 24, **others: Any
    ) -> None:
        require_known("opponent", opponent, OPPONENTS)
        check_number("invalid_penalty", invalid_penalty, Range(at_least=0))
        if max_turns < len(self.players):
            raise UsageError(f"max_turns counts the turns of both roles and must be at least 2, got {max_turns}")
        self.opponent: Opponent = opponent
        self.invalid_penalty = invalid_penalty
        super().__init__(max_turns=max_turns, **others)

    # ------------------------------------------------------------------------------------ methods to implement

    @abstractmethod
    def task_for_solver(self) -> str:
        """Return all that the solver is told about a valid proposal."""

    # ------------------------------------------------------------------------------------ methods that subclasses call

    def begin(self, said: str) -> Observation:
        """Begin the match with the proposer's first message, or with the solver if the environment proposes."""
        self.match = Match(said=((Message("user", said),), ()))
        if self.num_players == 1:
            self.accept()
            self.match = replace(self.match, role=SOLVER)
        return self.said_to(self.player)

    def accept(self) -> None:
        """Hand the proposed task, which is valid, to the solver.

        Raises:
            EnvError: the proposal was decided before, or :meth:`task_for_solver` returned no text.
        """
        self._decide("accept()")
        text: object = self.task_for_solver()
        if not isinstance(text, str):
            raise EnvError(
                f"{self.env_id}: task_for_solver() returned {type(text).__name__}, expected the solver's first message"
            )
        told = (Message("user", text),)
        self.match = replace(self.match, verdict=VALID, said=(self.match.said[PROPOSER], told))

    def reject(self, reason: str) -> None:
        """End the episode, because the proposal is invalid.

        Raises:
            EnvError: the proposal was decided before.
        """
        self._decide(f"reject({reason!r})")
        self.match = replace(self.match, verdict=reason, loser=PROPOSER)
        for part in self.parts_of(PROPOSER):
            self.award(part.value, part.name, part.role)
        self.finish()

    def settle(self, score: float) -> None:
        """End the episode with the solver's score, 0 to 1.

        Raises:
            RewardError: the score is another number.
            EnvError: there is no valid proposal, or the match is over.
        """
        if not 0 <= score <= 1:  # the proposer's reward is 1 minus the score
            raise RewardError(f"{self.env_id}: the solver's score is {score:g}, expected 0 to 1")
        if self.episode.is_over or not self.match.is_handed_over:
            why = "the match is over" if self.episode.is_over else "no proposal was accepted"
            raise EnvError(f"{self.env_id}: settle({score:g}), but {why}; settle a match once, in the solver's tools")
        self.match = replace(self.match, score=score)
        for part in self.parts_of(SOLVER):
            self.award(part.value, part.name, part.role)
        self.finish()

    def _decide(self, what: str) -> None:
        """Raise an error if the proposal was decided before."""
        if self.match.verdict:
            raise EnvError(
                f"{self.env_id}: {what}, but the proposal is {self.match.verdict!r} already; decide on it once, and "
                "return after that"
            )

    # -------------------------------------------------------------------------------------- interface for rollouts

    @property
    def num_players(self) -> int:
        return len(self.players) if self.opponent == "self" else 1

    @property
    def player(self) -> int:
        return self.match.role

    def said_to(self, player: int) -> Observation:
        return self.match.said[player]

    def parts_of(self, player: int) -> tuple[RewardPart, ...]:
        """Return ``answer`` of the solver, and ``unsolved`` or ``invalid_proposal`` of the proposer.

        A task that the solver had no turn for shows nothing, so the proposer gets 0 for it.
        """
        match = self.match
        if player == SOLVER:
            return (RewardPart("answer", match.score),) if match.is_handed_over else ()
        if match.is_handed_over:
            return (RewardPart("unsolved", 1.0 - match.score if match.num_turns[SOLVER] else 0.0),)
        return (RewardPart("invalid_proposal", -self.invalid_penalty, RewardRole.FORMAT),)

    def success_of(self, player: int) -> bool:
        """Return True for the proposer if its proposal was valid, and for the solver if its answer was right."""
        match = self.match
        is_solved = match.score >= self.success_outcome - 1e-9
        return match.is_handed_over and (player == PROPOSER or is_solved)

    @property
    def loser(self) -> int | None:
        return self.match.loser

    def forfeit(self, player: int) -> None:
        verdict = self.match.verdict if self.match.is_handed_over else NO_PROPOSAL
        self.match = replace(self.match, verdict=verdict, loser=player)
        self.finish()

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools of both roles, or of the solver if the environment proposes."""
        specs = super().tools
        return specs if self.num_players > 1 else tuple(s for s in specs if self.only_for.get(s.name) != PROPOSER)

    def tools_for(self, player: int) -> tuple[ToolSpec, ...]:
        return tuple(spec for spec in self.tools if self.only_for.get(spec.name, player) == player)

    # ------------------------------------------------------------------------------------------------- an episode

    @property
    def turns_of_role(self) -> int:
        """Turns that each role may take."""
        return max(1, (self.max_turns or len(self.players)) // len(self.players))

    def no_call(self, action: Message) -> str:
        self.refuse()
        return f"Call one of the tools: {', '.join(spec.name for spec in self.tools_for(self.player))}."

    def _checked(self, call: Call) -> tuple[Tool, ToolCall, dict[str, object]]:
        checked = super()._checked(call)
        names = [spec.name for spec in self.tools_for(self.player)]
        if checked[1].name not in names:
            raise unknown_tool(checked[1].name, names)
        if self.player == PROPOSER and self.match.is_handed_over:
            raise ToolError("your proposal is with the solver; this call was not run", "episode_over")
        return checked

    def _said(self, action: Message, results: Sequence[ToolResult]) -> Observation:
        """Note what each role reads next, and pass the turn on. Both ways to respond end here."""
        said = super()._said(action, results)
        assert not isinstance(said, str)
        match, role = self.match, self.player
        counts = tuple(count + (at == role) for at, count in enumerate(match.num_turns))
        texts = (said, match.said[SOLVER]) if role == PROPOSER else (match.said[PROPOSER], said)
        self.match = match = replace(match, num_turns=(counts[0], counts[1]), said=texts)
        if not self.episode.is_over and role == PROPOSER and match.is_handed_over:
            self.match = replace(match, role=SOLVER)
            return (*said, *self.said_to(SOLVER))
        if not self.episode.is_over and counts[role] >= self.turns_of_role:
            self._run_out(role)
        if self.episode.is_over and role == SOLVER:
            told = "The solver solved it." if self.success_of(SOLVER) else "The solver did not solve it."
            self.match = replace(self.match, said=((*match.said[PROPOSER], Message("user", told)), said))
        return said

    def _run_out(self, role: int) -> None:
        if role == PROPOSER:
            self.reject(NO_PROPOSAL)
        else:
            self.truncate()

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def own_info(self) -> Mapping[str, object]:
        return {**super().own_info(), "proposal": self.match.verdict}

    def state_key(self) -> str:
        """Return the role that acts, the verdict, and what the base class calls the state."""
        return canonical([self.match.role, self.match.verdict, super().state_key()])

    def message_of(self, *calls: ToolCall) -> Message:
        """Return the assistant message that makes calls."""
        return Message("assistant", "\n".join(format_call(call, self.tools) for call in calls), calls)
