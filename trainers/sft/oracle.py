"""Check of an environment's oracle, which must solve its own tasks in the model's tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentgym.env.env import Env
from agentgym.env.match_env import MatchEnv
from agentgym.errors import UsageError
from agentgym.types import Status, Trajectory

NUM_REPLAYED = 4
"""Number of tasks that the oracle plays again without noise, where noise made every demonstration fail."""
LEAST = 0.5
"""Share of its own tasks that an oracle without noise has to solve."""
_SHOWN = 100


def oracle_note(env: Env, demos: Sequence[Trajectory], share: float, max_context_tokens: int) -> str:
    """Return a note on an oracle that fails some of its tasks without noise; empty if it fails none.

    Args:
        demos: episodes of the oracle without random actions.
        share: the share of them that succeeded.

    Raises:
        UsageError: it fails most of them; the message says how these episodes ended. In a match, where chance and
            opponents decide too, that is a note.
    """
    if share == 1 or not demos:
        return ""
    said = (
        f"{env.env_id}: the oracle alone, without random actions, succeeds in {share:.0%} of its own tasks: "
        f"{_how_failures_ended(demos, max_context_tokens)}"
    )
    if share < LEAST and not isinstance(env, MatchEnv):
        raise UsageError(said)
    return said


def _how_failures_ended(demos: Sequence[Trajectory], max_context_tokens: int) -> str:
    """Return how episodes without success ended, by limit, with the last answer of one that met none."""
    failed = [demo for demo in demos if not demo.success]
    counts = Counter(demo.status for demo in failed)
    parts = [
        f"{counts[status]} met {limit}"
        for status, limit in (
            (Status.TRUNCATED_TOKENS, f"the limit of the context (model.max_context_tokens={max_context_tokens})"),
            (Status.TRUNCATED_TURNS, "the limit of turns (env.kwargs.max_turns)"),
        )
        if counts[status]
    ]
    if others := [demo for demo in failed if demo.status is Status.COMPLETED]:
        last = others[0].turns[-1] if others[0].turns else None
        said = " ".join(message.text for message in last.replies) if last else ""
        asked = f" to {last.action.text[:_SHOWN]!r}" if last else ""
        parts.append(f"{len(others)} ended without success, one after the answer {said[:_SHOWN]!r}{asked}")
    return ", ".join(parts)
