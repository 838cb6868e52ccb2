"""Policies that attempt a task several times with another policy: best of n, retries with feedback, summaries.

``best:POLICY,attempts=4``, ``retry:POLICY`` and ``summary:POLICY`` are names of such policies. One attempt counts. A
rule chooses it without access to the true reward, unless the name says ``by=oracle``. The other attempts are recorded
with it (``Trajectory.attempts``), and their tokens, time and cost count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from agentgym.env.env import Env
from agentgym.errors import EngineError, InfrastructureError, UsageError, boundary, unknown_name
from agentgym.evals.scoring import Grader, Scoring
from agentgym.plugins import kind
from agentgym.rollout.agent import Agent, Decision, EpisodePlayer, MakeAgent, ScriptedAgent
from agentgym.rollout.loop import run_episode, status_of
from agentgym.rollout.memory import with_note
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.transcript import transcript
from agentgym.scoring.answer import final_answer
from agentgym.scoring.text import normalize
from agentgym.settings import Count, Settings, check_ranges, checked
from agentgym.types import Message, Observation, Segment, Task, ToolSpec, Trajectory, Turn

Rule = Literal["last", "vote", "scorer", "oracle"]
Way = Literal["best", "retry", "summary"]

SEES_TRUTH = ("em", "f1", "cover_em", "numeric", "code", "outcome", "partial")
"""Scorers that use a task's answers or tests, or the environment's rewards."""
_LONGEST_FEEDBACK = 1_500
_LONGEST_TRANSCRIPT = 8_000
_SETTING = re.compile(r"(attempts|by)=([^,]*)")

TRIED = "You have tried this task before."
REJECTED = "You have tried this task before, and no attempt was accepted."
FEEDBACK = "Attempt {number} ended so: you did\n{action}\nand the environment answered\n{reply}"
SUMMARISED = "Attempt {number}, in your own summary: {text}"
AGAIN = "Do the task now, and avoid what went wrong."
QUESTION = (
    "This was your attempt at a task. Each line is one JSON object.\n{told}\n"
    "Summarise for another attempt what you tried, what came of it, and what to do otherwise. Use at most five "
    "sentences."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts(Settings):
    """The settings in the name of a policy with several attempts.

    Example:
        >>> Attempts.read("retry:openai:http://127.0.0.1:8000/v1?model=m,attempts=2,by=oracle")
        Attempts(way='retry', policy='openai:http://127.0.0.1:8000/v1?model=m', attempts=2, by='oracle')
    """

    way: Way
    policy: str
    """Policy of each attempt."""
    attempts: Count = 3
    """Most attempts per task."""
    by: Rule | Literal[""] = ""
    """Rule that chooses the attempt; empty for ``scorer`` if ``verify.kind`` is set, else for ``last``."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @classmethod
    def read(cls, name: str) -> Attempts | None:
        """Parse a policy's name. Return None for a policy that makes one attempt.

        Raises:
            ConfigError: a setting is wrong.
            UsageError: the name contains no inner policy.
        """
        way, colon, rest = name.partition(":")
        if not colon or way not in get_args(Way):
            return None
        given: dict[str, object] = {}
        while (cut := rest.rpartition(","))[1] and (setting := _SETTING.fullmatch(cut[2])):
            given[setting[1]] = int(setting[2]) if setting[2].isdigit() else setting[2]
            rest = cut[0]
        if not rest:
            raise UsageError(f"{name} names no inner policy; write {way}:POLICY,attempts=3")
        if cls.read(rest) is not None:
            raise UsageError(f"{name}: attempts of attempts are not supported")
        if "by" in given and given["by"] not in get_args(Rule):
            raise unknown_name("rule of by=", str(given["by"]), get_args(Rule), f"as in {way}:{rest},by=vote")
        return checked(cls, {"way": way, "policy": rest, **given}, name)

    def rule(self, verify: Mapping[str, object]) -> Rule:
        """Return the rule that chooses the attempt.

        Args:
            verify: settings of the scorer that rates attempts, ``verify.KEY=VALUE``.

        Raises:
            UsageError: the rule needs a scorer but none is set, or the reverse; or ``best`` has no rule.
        """
        rule = self.by or ("scorer" if verify else "last")
        if rule == "scorer" and not verify:
            raise UsageError(
                "by=scorer needs a scorer: verify.kind=judge verify.model=openai:URL, or verify.kind=file.py:NAME"
            )
        if verify and rule != "scorer":
            raise UsageError(f"verify.KEY=VALUE is for by=scorer, not for by={rule}")
        if self.way == "best" and rule == "last":
            raise UsageError(
                f"best:{self.policy} needs a rule that chooses: verify.kind=judge verify.model=openai:URL (a scorer), "
                "by=vote, or by=oracle, which knows the true result"
            )
        if self.way != "best" and rule == "vote":
            raise UsageError(f"by=vote counts independent attempts; use best:{self.policy},by=vote")
        return rule


def inner_policy(name: str) -> str:
    """Return the inner policy of a policy with several attempts, or the policy itself.

    Example:
        >>> inner_policy("best:smollm2,attempts=4,by=vote"), inner_policy("oracle")
        ('smollm2', 'oracle')
    """
    found = Attempts.read(name)
    return name if found is None else found.policy


def read_verifier(verify: Mapping[str, object]) -> Scoring:
    """Parse the settings of the scorer that rates attempts.

    Raises:
        ConfigError: the settings are wrong.
        UsageError: the scorer uses the true result.
    """
    scoring = Scoring.read(verify)
    if known := [name for one in scoring.scorers if (name := str(kind(one))) in SEES_TRUTH]:
        raise UsageError(
            f"verify.kind={known[0]} uses the true result, which the agent does not know; use judge, regex or your "
            "own scorer, or by=oracle to let the true result decide"
        )
    return scoring


class AttemptsPlayer:
    """An :class:`~agentgym.rollout.agent.EpisodePlayer` that attempts a task several times and lets one attempt count.

    The first attempt equals the episode of the inner policy alone. If the infrastructure fails in an attempt, the whole
    episode fails and is retried.

    Args:
        inner: makes agents of the inner policy.
        verifier: the scorer of ``by=scorer``. It sees episodes without answers, tests, rewards and success.
        folder: folder in which the scorer may cache its results.

    Raises:
        UsageError: the inner policy runs whole episodes itself.
    """

    def __init__(self, inner: MakeAgent, how: Attempts, rule: Rule, verifier: Scoring | None, folder: Path) -> None:
        if isinstance(inner, EpisodePlayer):
            raise UsageError(f"{how.way}: plays a policy turn by turn; leave --harness out")
        self._inner, self._how, self._rule = inner, how, rule
        self._success_at = 1.0 if verifier is None else verifier.success_at
        self._grader = None if verifier is None else Grader(verifier, folder)

    def __call__(self, env: Env, seed: int) -> Agent:
        """Make the agent of a single attempt, for callers that do not run whole episodes."""
        return self._inner(env, seed)

    async def close(self) -> None:
        """Free the scorer's resources."""
        if self._grader is not None:
            await self._grader.close()

    async def play_episode(self, env: Env, request: RolloutRequest) -> Trajectory:
        """Run the attempts of one episode and return the one that counts."""
        played: list[Trajectory] = []
        scores: list[float] = []
        notes: list[str] = []
        for number in range(self._how.attempts):
            attempt = await self._attempt(env, request, number, notes)
            if not attempt.status.is_evidence:
                return replace(attempt, seed=request.seed)
            try:
                score = await self._score(attempt)
                is_last = number == self._how.attempts - 1
                if not is_last and not self._is_accepted(score) and self._how.way != "best":
                    attempt, note = await self._note_on(attempt, env, number)
                    notes.append(note)
            except InfrastructureError as error:
                lost = replace(attempt, seed=request.seed, status=status_of(error), success=None)
                return replace(lost, error=f"between attempts: {error}", failed_part="attempts")
            played.append(attempt)
            scores.append(score)
            if self._is_accepted(score):
                break
        return _chosen(played, self._choice(played, scores), request.seed)

    async def _attempt(self, env: Env, request: RolloutRequest, number: int, notes: Sequence[str]) -> Trajectory:
        note = _told(notes, is_rejected=self._rule in ("scorer", "oracle"))

        def make_agent(env: Env, seed: int) -> Agent:
            agent = self._inner(env, seed)
            return _NotedAgent(agent, note) if note else agent

        seed = derive_seed(request.seed, "attempt", number) if number else request.seed
        attempt = await run_episode(env, replace(request, make_agent=make_agent, seed=seed))
        return replace(attempt, observation=_noted(attempt.observation, note)) if note else attempt

    async def _score(self, attempt: Trajectory) -> float:
        """Return the score of an attempt according to the rule, or 0 if the rule uses no score."""
        if self._rule == "oracle":
            return float(bool(attempt.success))
        return 0.0 if self._grader is None else (await self._grader.scored(_blinded(attempt))).score

    def _is_accepted(self, score: float) -> bool:
        if self._rule == "oracle":
            return score > 0
        return self._rule == "scorer" and self._how.way != "best" and score >= self._success_at

    def _choice(self, played: Sequence[Trajectory], scores: Sequence[float]) -> int:
        """Return the index of the attempt that counts; among equal ones the first for ``best``, else the last."""
        if self._rule == "vote":
            answers = [normalize(final_answer(one)) for one in played]
            return answers.index(max(answers, key=answers.count))
        best = max(scores)
        if self._how.way == "best":
            return scores.index(best)
        return max(at for at, score in enumerate(scores) if score == best)

    async def _note_on(self, attempt: Trajectory, env: Env, number: int) -> tuple[Trajectory, str]:
        """Return the attempt, with its summary turn if there is one, and the note about it for the next attempt."""
        if self._how.way == "retry":
            return attempt, _feedback(attempt, number + 1)
        text, turn = await self._summary(attempt, env)
        note = SUMMARISED.format(number=number + 1, text=text)
        return (attempt if turn is None else replace(attempt, segments=(*attempt.segments, Segment((turn,))))), note

    async def _summary(self, attempt: Trajectory, env: Env) -> tuple[str, Turn | None]:
        """Let the policy summarise its attempt; for a scripted policy, return the end of the transcript."""
        told = transcript(replace(attempt, observation=()), _LONGEST_TRANSCRIPT)
        agent = self._inner(env, derive_seed(attempt.seed, "summary"))
        if isinstance(agent, ScriptedAgent):
            return told[-_LONGEST_FEEDBACK:], None
        try:
            with boundary(EngineError, "sampling a summary"):
                agent.begin((Message("user", QUESTION.format(told=told)),), ())
                decision = await agent.decide()
        finally:
            await agent.end()
        if decision is None:  # the transcript fills the context
            return told[-_LONGEST_FEEDBACK:], None
        turn = replace(decision.as_turn(len(attempt.turns), "attempt over"), kind="summary")
        return turn.action.text.strip()[:_LONGEST_FEEDBACK], turn


def _chosen(played: Sequence[Trajectory], at: int, seed: int) -> Trajectory:
    others = tuple(one for number, one in enumerate(played) if number != at)
    return replace(played[at], seed=seed, attempts=others, attempt=at)


def _feedback(attempt: Trajectory, number: int) -> str:
    """Return a text about the end of an attempt, based only on the agent's own actions and observations."""
    own = [turn for turn in attempt.turns if turn.kind == "act"]
    if not own:
        return f"Attempt {number} ended before its first turn."
    reply = "\n".join(message.text for message in own[-1].replies).strip()
    return FEEDBACK.format(
        number=number,
        action=own[-1].action.text[:_LONGEST_FEEDBACK],
        reply=reply[:_LONGEST_FEEDBACK] or f"nothing more ({str(attempt.status).replace('_', ' ')})",
    )


def _told(notes: Sequence[str], *, is_rejected: bool) -> str:
    return "\n".join(("\n" + (REJECTED if is_rejected else TRIED), *notes, AGAIN)) if notes else ""


def _noted(observation: Observation, note: str) -> Observation:
    """Return a first observation with a note at the end of its last message, or in a new message."""
    if not observation:
        return (Message("user", note.strip()),)
    return (*observation[:-1], with_note(observation[-1], "\n" + note))


def _blinded(attempt: Trajectory) -> Trajectory:
    """Return an attempt without the task's data, rewards and success, which the agent must not know."""
    segments = tuple(
        replace(segment, turns=tuple(replace(turn, reward_parts=()) for turn in segment.turns))
        for segment in attempt.segments
    )
    task = Task(id=attempt.task.id, split=attempt.task.split, seed=attempt.task.seed)
    return replace(attempt, task=task, segments=segments, success=None)


class _NotedAgent:
    """An agent whose first observation ends with a note."""

    def __init__(self, agent: Agent, note: str) -> None:
        self._agent, self._note = agent, note

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        self._agent.begin(_noted(observation, self._note), tools)

    async def decide(self) -> Decision | None:
        return await self._agent.decide()

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        self._agent.observe(replies, played)

    async def end(self) -> None:
        await self._agent.end()


def open_attempts(inner: MakeAgent, how: Attempts, verify: Mapping[str, object], folder: Path | None) -> AttemptsPlayer:
    """Return the player of a policy with several attempts.

    Args:
        folder: folder of the evaluation; by default the working directory.

    Raises:
        UsageError: the rule and its scorer do not fit together.
        ConfigError: the settings of the scorer are wrong.
    """
    rule = how.rule(verify)
    verifier = read_verifier(verify) if rule == "scorer" else None
    return AttemptsPlayer(inner, how, rule, verifier, folder or Path())
