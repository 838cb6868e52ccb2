"""Likelihood of the reference answer after every turn, from which information gain is computed.

The answer is teacher-forced within a fixed template, as the assistant's next message, in every context of an episode:
before the first turn and after each turn that was followed by an observation. Contexts are the recorded tokens of the
episode; they are never encoded again.

Source: "Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents"
(``scrl/llm_agent/generation.py``, ``vectorized_gt_logprob.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np

from agentgym.credit import rules
from agentgym.credit.table import Floats, Ints
from agentgym.errors import ConfigError
from agentgym.render.chat import ChatRenderer
from agentgym.trainers.data.row import Row, Span
from agentgym.trainers.models.precision import ATTENTION
from agentgym.trainers.scoring.tokens import score
from agentgym.trainers.types import CausalLM
from agentgym.types import FinishReason, Message, Status, Task, Trajectory, TrajectoryGroup, Turn

NUM_CHECKED_TASKS = 64
CUSTOM_MASKS = ("sdpa", "eager", ATTENTION)
"""Attention implementations that accept a custom mask, which packing needs."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference answer in the template, as tokens up to the answer's last token."""

    token_ids: tuple[int, ...]
    at: tuple[int, ...]
    """Indices of the tokens that contain characters of the answer."""


@dataclass(frozen=True, slots=True)
class Window:
    """A context window up to its last context. Each context is a prefix of the window, given by its length."""

    token_ids: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """Scores of the reference answers per valid trajectory, in the form of the credit table."""

    logprobs: tuple[Floats, ...]
    """``[C, R]`` mean log-probability of each of R references in each of C contexts."""
    lengths: tuple[Ints, ...]
    """``[R]`` number of tokens of each reference answer."""


def check_references(tasks: Sequence[Task]) -> None:
    """Check that the first tasks have a reference answer, which information gain needs (composition rule 10).

    Raises:
        ConfigError: a task has none; the message names the rule and the task.
    """
    for task in islice(tasks, NUM_CHECKED_TASKS):
        try:
            rules.refuse_errors(rules.reference_answers(has_gain=True, has_reference=bool(task.answers)))
        except ConfigError as error:
            raise ConfigError(f"{error}: task {task.id!r} has no data['answers'] (docs/training.md)") from None


def check_scoring(model: CausalLM, scoring: str) -> None:
    """Check that the model's attention implementation accepts a custom mask, which packed scoring needs.

    Raises:
        ConfigError: it does not; the message names the implementation and the alternative.
    """
    if scoring == "packed" and model.config._attn_implementation not in CUSTOM_MASKS:
        raise ConfigError(
            f"columns.scoring=packed needs attention that takes a mask ({' or '.join(CUSTOM_MASKS)}), the model has "
            f"{model.config._attn_implementation!r}: set columns.scoring=batched"
        )


def reference(renderer: ChatRenderer, template: str, answer: str) -> Reference:
    """Render an answer in the template; its tokens are found by characters, because BPE merges across the border.

    Raises:
        ConfigError: the tokenizer has no token for it.
    """
    before, _, after = template.partition("{answer}")
    token_ids, at = renderer.spoken_ids(before + answer + after, (len(before), len(before) + len(answer)))
    if not at:
        raise ConfigError(f"the model's tokenizer has no token for the reference answer {answer!r}: correct the task")
    return Reference(token_ids[: at[-1] + 1], at)


def windows(trajectory: Trajectory, renderer: ChatRenderer) -> list[Window]:
    """Return the windows of an episode with their contexts, one before every turn.

    An episode that was truncated by the limit of turns has one more context, after its last observation, in the last
    window. An episode that filled its window has no room for it.
    """
    made: list[Window] = []
    for segment in trajectory.segments:
        at, ends = 0, []
        for turn in segment.turns:
            ends.append(at + len(turn.prompt_ids))
            at = ends[-1] + len(turn.completion.token_ids)
        made.append(Window(segment.token_ids[: ends[-1]], tuple(ends)))
    if made and trajectory.status is Status.TRUNCATED_TURNS:
        segment = trajectory.segments[-1]
        token_ids = segment.token_ids + _last_observation(segment.turns[-1], renderer)
        made[-1] = Window(token_ids, (*made[-1].ends, len(token_ids)))
    return made


def _last_observation(turn: Turn, renderer: ChatRenderer) -> tuple[int, ...]:
    sampled = turn.completion
    is_stopped = sampled.finish_reason is FinishReason.STOP and sampled.token_ids[-1:] != ()
    end = sampled.token_ids[-1] if is_stopped and sampled.token_ids[-1] in renderer.turn_end_ids else None
    said = replace(turn.action, thinking="")  # the prompt ends here, so no later rendering can drop it
    return renderer.suffix_ids((Message("user", "?"), said), turn.replies, (), end) or ()


def score_answers(
    model: CausalLM,
    groups: Sequence[TrajectoryGroup],
    renderer: ChatRenderer,
    *,
    template: str,
    scoring: Literal["batched", "packed"],
    tokens_per_microbatch: int,
) -> AnswerScores:
    """Score the references of every valid trajectory at temperature 1, with the model's current weights.

    All ranks must call this, each with groups of its own.

    Args:
        template: the assistant's message, with ``{answer}`` in place of the answer.
        scoring: ``batched`` runs every context with every reference; ``packed`` runs a window once, followed by all
            references under a mask. Both give the same numbers up to rounding.

    Raises:
        ConfigError: packed scoring with an attention implementation that takes no mask.
    """
    check_scoring(model, scoring)
    members = [(group.task, trajectory) for group in groups for trajectory in group.valid]
    references = {answer: reference(renderer, template, answer) for group in groups for answer in group.task.answers}
    of_member = [
        ([references[answer] for answer in task.answers], windows(trajectory, renderer)) for task, trajectory in members
    ]
    ask = _packed if scoring == "packed" else _batched
    rows = [row for refs, some in of_member for window in some for row in ask(window, refs)]
    keys = [(row.token_ids, row.spans, row.positions.tobytes()) for row in rows]
    unique = dict(zip(keys, rows, strict=True))  # members of a group begin with the same context
    scores = score(model, list(unique.values()), temperature=1.0, tokens_per_microbatch=tokens_per_microbatch)
    scored = dict(zip(unique, scores, strict=True))
    flat = iter(np.concatenate([np.empty(0), *(scored[key].logprobs for key in keys)]).tolist())
    return AnswerScores(
        tuple(_levels(refs, sum(len(window.ends) for window in some), flat) for refs, some in of_member),
        tuple(np.array([len(each.at) for each in refs], dtype=np.int64) for refs, _ in of_member),
    )


def _levels(refs: Sequence[Reference], num_contexts: int, logprobs: Iterator[float]) -> Floats:
    """Average the log-probabilities over each answer's tokens, ``[C, R]``; consume them from ``logprobs``."""
    rows = [[float(np.mean(list(islice(logprobs, len(each.at))))) for each in refs] for _ in range(num_contexts)]
    return np.array(rows, dtype=np.float64).reshape(num_contexts, len(refs))


def _batched(window: Window, refs: Sequence[Reference]) -> list[Row]:
    return [
        Row(token_ids=window.token_ids[:end] + each.token_ids, positions=end + np.array(each.at))
        for end in window.ends
        for each in refs
    ]


def _packed(window: Window, refs: Sequence[Reference]) -> list[Row]:
    """Build the row ``[window | answer in context 0 | in context 1 | ...]``; answers lack their last token."""
    token_ids, spans = list(window.token_ids), []
    positions: list[int] = []
    targets: list[int] = []
    for end in window.ends:
        for each in refs:
            start = len(token_ids)
            token_ids += each.token_ids[:-1]
            spans.append(Span(end, len(each.token_ids) - 1))
            positions += [start + at if at else end for at in each.at]
            targets += [each.token_ids[at] for at in each.at]
    if not targets:
        return []
    own = tuple(span for span in spans if span.length)
    return [Row(token_ids=tuple(token_ids), positions=np.array(positions), targets=np.array(targets), spans=own)]
