"""Self-distillation: the policy scores its own episodes as if their prompt had held a successful one.

With a demonstration in its prompt the policy is a better one, at least where it can copy. Its log-probabilities of the
tokens that it sampled *without* the demonstration are the teacher's of the regulariser ``self_distill``. Source:
"Self-Distillation Enables Continual Learning" (SDFT: the model that sees a demonstration teaches the model that does
not, on tokens that the latter sampled).

The demonstration is another success of the episode's group: one of the oracle (``strategy.guidance=demonstration``)
before one that is trained again (``strategy.replay``) before one of this step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym.credit.table import Floats
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.context import ContextConfig, Room, open_context
from agentgym.rollout.memory import with_note
from agentgym.rollout.transcript import transcript
from agentgym.trainers.data.outline import GroupMetadata
from agentgym.trainers.data.row import Row
from agentgym.trainers.distributed.sharding import ranks_of
from agentgym.trainers.losses.options import SelfDistillOptions
from agentgym.trainers.scoring.tokens import sampled_row, score
from agentgym.trainers.types import CausalLM
from agentgym.types import Observation, ToolSpec, Trajectory, TrajectoryGroup

SHOWN = "\nAn episode of this task that succeeded:\n{episode}\nNow solve the task yourself."

TeacherLogprobs = Mapping[tuple[int, int], Floats]
"""For (ordinal of a group, index among its valid members) the teacher's log-probability of each sampled token of the
episode's first context window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptStyle:
    """The renderer, the context, the tools and the room of an environment's prompts."""

    renderer: ChatRenderer
    context: ContextConfig
    tools: Sequence[ToolSpec]
    room: Room

    def first_prompt(self, observation: Observation) -> tuple[int, ...]:
        """Return the tokens of an episode's first prompt."""
        return open_context(self.context, self.renderer, self.tools, observation, self.room).prompt_ids


def self_taught(
    model: CausalLM,
    groups: Sequence[TrajectoryGroup],
    style: PromptStyle,
    options: SelfDistillOptions,
    *,
    temperature: float,
    tokens_per_microbatch: int,
) -> tuple[TeacherLogprobs, dict[str, float]]:
    """Score the episodes of groups with a demonstration in their prompts. All ranks must call this.

    A rank receives the log-probabilities of the groups whose tokens it has.

    Returns:
        the teacher's log-probabilities, and metrics: ``self_distill/num_taught`` episodes, and ``num_without``, those
        that had no demonstration, no room for one, or a prompt of another form.
    """
    keys: list[tuple[int, int]] = []
    questions: list[Row] = []
    num_without = 0
    for group in groups:
        for at, member in enumerate(() if isinstance(group, GroupMetadata) else group.valid):
            if member.is_demonstration or not member.turns or member.segments[0].role:
                continue  # another role's first window is not of this model
            shown = demonstration_for(group.valid, at)
            question = None if shown is None else _question(member, shown, style, options.max_chars)
            if question is None:
                num_without += 1
                continue
            keys.append((group.ordinal, at))
            questions.append(question)
    scores = score(model, questions, temperature=temperature, tokens_per_microbatch=tokens_per_microbatch)
    taught = {key: made.logprobs for key, made in zip(keys, scores, strict=True)}
    counted = ranks_of(model).gathered((len(keys), num_without))
    num_taught, num_without = (sum(counts) for counts in zip(*counted, strict=True))
    return taught, {"self_distill/num_taught": float(num_taught), "self_distill/num_without": float(num_without)}


def demonstration_for(members: Sequence[Trajectory], at: int) -> Trajectory | None:
    """Return the success that a member is taught by: another one, the oracle's first, then a replayed one."""
    others = [other for index, other in enumerate(members) if index != at and other.success and other.turns]
    return min(others, key=lambda one: (not one.is_demonstration, one.replayed_step is None), default=None)


def _question(member: Trajectory, shown: Trajectory, style: PromptStyle, max_chars: int) -> Row | None:
    """Return the tokens of the first context window after a prompt with a demonstration; None if that cannot be."""
    segment = member.segments[0]
    plain_ids = segment.turns[0].prompt_ids
    if not member.observation or style.first_prompt(member.observation) != plain_ids:
        return None
    *before, last = member.observation
    told = SHOWN.format(episode=transcript(shown, max_chars))
    taught_ids = style.first_prompt((*before, with_note(last, told)))
    token_ids = (*taught_ids, *segment.token_ids[len(plain_ids) :])
    if len(token_ids) > style.room.window:
        return None
    added = len(taught_ids) - len(plain_ids)
    return Row(token_ids=token_ids, positions=sampled_row(segment).positions + added)
