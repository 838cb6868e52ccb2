"""``agentgym/SkillChain-v0``: similar tasks of another environment in a row, with a library of skills for later ones.

Source: "Reinforcement Learning for Self-Improving Agent with Skill Library" (SAGE, arXiv 2512.17102). The sequential
rollout and the reward are from the paper. A rollout is a chain of similar tasks (two in the paper). Each begins with a
new conversation, and skills of earlier tasks are in the library of later ones. With outcomes ``r1`` and ``r2``, and
``u = 1`` if the second task used a skill of the first::

    R1 = r1 + [r1 = 1] [r2 = 1] u        R2 = r2 + [r2 = 1] u

The formula comes from published summaries of the paper (section 3.2.3), since its released code was not at hand. Our
own reading: skills are lists of tool calls, not Python functions; a skill counts as used if it ran to its end; and
chains may be longer than two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentgym.call_syntax import format_call, parse_calls
from agentgym.canonical import canonical
from agentgym.env.env import Env
from agentgym.envs.skill_chain.chain import Bonuses
from agentgym.envs.skill_chain.library import SAVE, USE, Limits, Skill, listed, new_skill
from agentgym.envs.skill_chain.oracle import next_skill_call, plan_of
from agentgym.envs.skill_chain.task_chain import TaskChainEnv, Work
from agentgym.errors import ToolError
from agentgym.settings import Range, check_number
from agentgym.tool import cut_output, result_of, tool
from agentgym.types import ImagePart, Message, RewardPart, ToolCall, ToolResult


class SkillChainEnv(TaskChainEnv):
    """Play similar tasks of another environment in a row, save skills, and use them in later tasks.

    The tools are those of the wrapped environment, ``save_skill`` and ``use_skill``. A skill's calls run within one
    turn of the agent, and stop at the first error. They earn what they earn by themselves, and count as turns of the
    wrapped environment. The reward parts ``skill_made`` and ``skill_used`` are the paper's bonuses.

    Args:
        made_bonus: reward of a successful task for a skill that a later successful task uses; 0 for none.
        used_bonus: reward of a successful task that uses a skill of an earlier one; 0 for none.
        min_calls, max_calls, max_skills, max_skill_chars: limits of skills and of the library
            (:class:`~agentgym.envs.skill_chain.library.Limits`).
        others: see :class:`~agentgym.envs.skill_chain.task_chain.TaskChainEnv`: ``env``, ``env_kwargs``,
            ``num_tasks``, ``same``, ``earlier``, ``max_turns``.

    Raises:
        UsageError: the wrapped environment cannot be used, or a value is out of range.

    Example:
        >>> env = SkillChainEnv(env_kwargs={"task_types": ["pick_and_place_simple"]})
        >>> observation, info = env.reset(options={"task": 1})
        >>> while not (step := env.step(env.oracle()))[2]:
        ...     pass
        >>> step[4]["success"], step[4]["skills"]
        (True, ('take_go_to_move',))
        >>> [(part.name, part.value) for part in env.parts_of(1)]
        [('outcome', 1.0), ('skill_used', 1.0)]
    """

    def __init__(
        self,
        *,
        made_bonus: float = 1.0,
        used_bonus: float = 1.0,
        min_calls: int = 2,
        max_calls: int = 12,
        max_skills: int = 8,
        max_skill_chars: int = 600,
        **others: Any,
    ) -> None:
        check_number("made_bonus", made_bonus, Range(at_least=0))
        check_number("used_bonus", used_bonus, Range(at_least=0))
        self.limits = Limits(
            min_calls=min_calls, max_calls=max_calls, max_skills=max_skills, max_skill_chars=max_skill_chars
        )
        self.bonuses = Bonuses(made=made_bonus, used=used_bonus)
        self._scout: Env | None = None
        super().__init__(**others)
        self.longest_step_s = self.world.longest_step_s * (max_calls + 1)

    # -------------------------------------------------------------------------------------------------------- tools

    @tool
    def save_skill(self, name: str, parameters: list[str], calls: str) -> str:
        """Save calls of the other tools as a skill, for this task and the next ones.

        Args:
            name: A new name: letters, digits and _.
            parameters: Names of what differs from task to task.
            calls: One call per line, as in "take: $object; $place". $NAME stands for a parameter.
        """
        chain, tools = self.chain, self.world.tools
        skill = new_skill(name, parameters, calls, tools=tools, library=chain.library, limits=self.limits)
        self.chain = replace(chain, library=(*chain.library, replace(skill, maker=chain.at)))
        return f"Saved {name}({', '.join(parameters)})."

    @tool
    def use_skill(self, name: str, arguments: dict[str, Any]) -> Work[ToolResult]:
        """Run the calls of a skill in order, up to the first error.

        Args:
            name: Name of the skill.
            arguments: A value for each parameter of the skill.
        """
        skill = next((skill for skill in self.chain.library if skill.name == name), None)
        if skill is None:
            known = ", ".join(skill.name for skill in self.chain.library) or "none"
            raise ToolError(f"no skill {name[:60]!r}. Skills: {known}", "unknown_skill")
        return self._run_skill(skill, skill.filled(arguments))

    def _run_skill(self, skill: Skill, calls: tuple[ToolCall, ...]) -> Work[ToolResult]:
        said: list[str] = []
        images: list[ImagePart] = []
        stopped = False
        for number, call in enumerate(calls, 1):
            line = format_call(call, self.world.tools)
            observation, info = yield from self.play(Message("assistant", line, (replace(call, id="0"),)))
            said += [f"> {line}", *(message.text for message in observation if message.text)]
            images += [image for message in observation for image in _images(message)]
            stopped = not info["is_valid"]
            if stopped:
                said.append(f"Stopped at call {number} of {len(calls)}.")
            if stopped or self.now.is_over:
                break
        if not stopped and skill.maker < self.chain.at:
            self.note(used=(*self.now.used, skill.maker))
        text = cut_output("\n".join(said))
        return ToolResult(text, USE, error_type="skill_stopped" if stopped else None, images=tuple(images))

    def call_own(self, call: ToolCall) -> Work[ToolResult]:
        arguments = self.own_tools[call.name].arguments(call)
        if call.name == SAVE:
            return result_of(call, self.save_skill(**arguments))
        result = yield from self.use_skill(**arguments)
        return replace(result, call_id=call.id)

    # ------------------------------------------------------------------------------------------------- a chain's tasks

    def briefing(self) -> str:
        return listed(self.chain.library, self.world.tools)

    def bonuses_of(self, number: int) -> tuple[RewardPart, ...]:
        return tuple(self.bonuses.of(self.chain, number, self.num_tasks))

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def own_info(self) -> Mapping[str, object]:
        """Return the names of the library's skills."""
        return {"skills": tuple(skill.name for skill in self.chain.library)}

    def state_key(self) -> str:
        """Return the number of the task, the library, and the wrapped environment's state."""
        library = sorted(skill.shown(self.world.tools) for skill in self.chain.library)
        return canonical([self.chain.at, library, self.world.state_key()])

    def oracle(self) -> Message:
        """Return what the wrapped environment's oracle would do, or a call that saves or uses a skill for its plan.

        Without native snapshots the oracle cannot plan, and makes no skills.
        """
        snapshot = self.world.snapshot()
        if snapshot.native is None:
            return self.world.oracle()
        self._scout = scout = self._scout or self.make_world()
        scout.max_turns = self.world.max_turns
        scout.restore(snapshot)
        at, library = self.chain.at, self.chain.library
        found = next_skill_call(
            plan_of(scout),
            library,
            self.now.read,
            tools=self.world.tools,
            may_save=at < self.num_tasks - 1 and all(skill.maker != at for skill in library),
            limits=self.limits,
        )
        if found is None:
            return self.world.oracle()
        call = ToolCall(*found, id="0")
        return Message("assistant", format_call(call, self.tools), (call,))

    def parse_action(self, text: str) -> Message:
        """Convert a person's input: calls of skill tools in the compact syntax, others as the wrapped environment."""
        names = [line.partition(":")[0].strip() for line in text.split("\n")]
        if SAVE in names or USE in names:
            return Message("assistant", text, parse_calls(text, self.tools))
        return self.world.parse_action(text)

    def stop(self) -> None:
        super().stop()
        if self._scout is not None:
            self._scout.close()


def _images(message: Message) -> Iterator[ImagePart]:
    if not isinstance(message.content, str):
        yield from (part for part in message.content if isinstance(part, ImagePart))
