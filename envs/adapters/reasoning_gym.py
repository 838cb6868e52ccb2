"""``agentgym/ReasoningGym-v0``: generated problems of reasoning-gym, graded by its own verifiers.

Source: "REASONING GYM: Reasoning Environments for Reinforcement Learning with Verifiable Rewards"; the package is
open-thought/reasoning-gym, Apache-2.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentgym.canonical import canonical, digest
from agentgym.env.tasks import SeededTasks
from agentgym.envs.adapters.worker_process import SharedWorker
from agentgym.envs.interfaces import Interface, InterfaceEnv
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import EnvError, EnvTimeoutError, UsageError, require_extra, unknown_name
from agentgym.tool import tool
from agentgym.types import Message, Task, ToolCall

WITHOUT_ANSWERS = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
"""Data sets that verify answers but provide none, so that there is no oracle."""

_COMPOSITE = "composite"  # ``composite`` mixes other data sets, for which the argument ``datasets`` is used here
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_LOAD_TIMEOUT_S = 120.0
_HOW = {
    "tools": "Give your answer with the tool submit_answer.",
    "text": "Write your answer between <answer> and </answer>.",
}


class ReasoningGymEnv(InterfaceEnv):
    """Answer a generated problem, which the data set's own verifier grades.

    The outcome is the verifier's score of the last answer, 0 to 1; some data sets give partial scores. All environments
    of this process share one engine process. Some verifiers ``eval`` answers; here they accept only literals and
    arithmetic.

    Args:
        datasets: one name or several, whose tasks alternate; by default all data sets that provide answers.
        config: settings of the data set, such as sizes; only with a single data set.
        num_attempts: number of answers that may be submitted; the reply to a wrong one is its score.
        interface: ``tools`` for the tool ``submit_answer``, ``text`` for an answer in ``<answer>`` tags, or the whole
            message without tags.
        answer_timeout_s: time limit in seconds for verifying an answer (most take milliseconds).

    Raises:
        MissingExtraError: reasoning-gym is not installed.
        UsageError: there is no such data set, or its settings are wrong.
    """

    is_blocking: ClassVar[bool] = True
    _problem = SinceReset[dict[str, Any]]()

    def __init__(
        self,
        *,
        datasets: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        num_attempts: int = 1,
        interface: Interface = "tools",
        answer_timeout_s: float = 20.0,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        require_extra("agentgym/ReasoningGym-v0", "reasoning-gym", "reasoning_gym")
        if num_attempts < 1:
            raise UsageError(f"num_attempts must be at least 1, got {num_attempts}")
        self._num_attempts = num_attempts
        self._answer_timeout_s = answer_timeout_s
        self._datasets = (datasets,) if isinstance(datasets, str) else tuple(datasets or ())
        self._config = dict(config or {})
        if self._config and len(self._datasets) != 1:
            raise UsageError(f"config is of one data set; name it in datasets, which are {len(self._datasets)} here")
        self._num_left = 0
        super().__init__(interface=interface, max_turns=max_turns or 2 * num_attempts, render_mode=render_mode)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        data = {"datasets": list(self._datasets), "config": self._config, **task.data}
        names = data["datasets"] or _default_datasets()
        name = str(names[task.seed % len(names)])
        problem = _ENGINE.call(
            _LOAD_TIMEOUT_S, op="problem", dataset=name, config=data["config"], seed=task.seed // len(names)
        )
        if "known" in problem:
            raise unknown_name("data set of reasoning-gym", name, problem["known"])
        if "refused" in problem:
            raise UsageError(f"data set {name!r} of reasoning-gym: {problem['refused']}")
        self._problem, self._num_left = {**problem, "dataset": name}, self._num_attempts
        many = f" You may answer {self._num_attempts} times." if self._num_attempts > 1 else ""
        return f"{problem['question']}\n\n{_HOW[self.interface]}{many}"

    @tool
    def submit_answer(self, answer: str) -> str:
        """Submit your answer to the problem.

        Args:
            answer: The answer alone, in the form that the problem asks for.
        """
        score = self._score(answer)
        self._num_left -= 1
        if score >= self.success_outcome or self._num_left == 0:
            self.finish(score)
            return "Correct." if score >= self.success_outcome else f"Not correct; its score is {score:.2f}."
        left = "1 answer is" if self._num_left == 1 else f"{self._num_left} answers are"
        return f"Not correct; its score is {score:.2f}. {left} left."

    def respond_to_text(self, action: Message) -> str:
        answer = (_TAGGED.findall(action.text) or [action.text])[-1].strip("\n")
        if not answer.strip():
            self.refuse()
            return _HOW["text"]
        return self.submit_answer(answer)

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def task_type(self) -> str:
        """Data set of the problem."""
        return str(self._problem["dataset"])

    def tasks(self, split: str) -> Sequence[Task]:
        """Return problems by seed. Small data sets may repeat a problem for two seeds, even in two splits."""
        data = {"datasets": list(self._datasets), "config": self._config}
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, data)

    def state_key(self) -> str:
        """Return a key of the problem and the number of answers left."""
        return canonical([self._problem["dataset"], digest(self._problem["question"]), self._num_left])

    def oracle(self) -> Message:
        """Submit the data set's own answer.

        Raises:
            UsageError: the data set provides no answer.
        """
        answer = self._problem.get("answer")
        if answer is None:
            raise UsageError(f"{self.env_id}: {self._problem.get('dataset')} has no answer of its own, so no oracle")
        return self.message_of(str(answer))

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Return answers that are programs, against verifiers that evaluate answers; none if any answer earns
        something.
        """
        if self._verify("certainly not this") > 0:
            return {}
        scorer = "__import__('sys')._getframe(1).f_locals"
        read = f"{scorer}['entry']['answer'].split()"
        patch = f"setattr(type({scorer}['self']), 'score_answer', lambda *of: 1.0)"
        return {
            "read the answer": [self.message_of(read)],
            "replace the verifier": [self.message_of(patch), self.message_of("1")],
        }

    def message_of(self, answer: str) -> Message:
        """Return the assistant message with an answer in the current interface."""
        if self.interface == "text":
            return Message("assistant", f"<answer>{answer}</answer>")
        return Message("assistant", "", (ToolCall("submit_answer", {"answer": answer}, "0"),))

    # --------------------------------------------------------------------------------------------------- private

    def _score(self, answer: str) -> float:
        """Return the score: 0 for an answer that hangs or kills the verifier, provided that the correct answer does
        not.
        """
        try:
            return float(self._verify(answer))
        except (EnvError, EnvTimeoutError):
            self._verify(self._problem["answer"])  # this raises, too, if the engine itself is at fault
            self.refuse()
            return 0.0

    def _verify(self, answer: str | None) -> float:
        problem = {key: self._problem[key] for key in ("dataset", "config", "seed")}
        return float(_ENGINE.call(self._answer_timeout_s, op="score", answer=answer, **problem)["score"])


def _default_datasets() -> tuple[str, ...]:
    names = _ENGINE.call(_LOAD_TIMEOUT_S, op="names")["names"]
    return tuple(name for name in names if name not in (*WITHOUT_ANSWERS, _COMPOSITE))


_ENGINE = SharedWorker("agentgym.envs.adapters.reasoning_gym_worker", load_timeout_s=120.0)
"""Engine for all environments of this process, since its answers depend only on the request."""
