"""``agentgym/SemiOnline-v0``: any environment, with an expert's trace that replaces the agent's wrong actions.

Source: "UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning", whose semi-online rollouts keep the
agent's own message in its history while its action equals the expert's. Otherwise they patch the history with the
expert's action, up to a number of times. In the paper the next screen comes from the expert's file; here the
environment itself continues, and its state is compared with the file at every turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentgym.canonical import canonical, digest
from agentgym.env.env import Env, Snapshot, StepReturn, TypedStep
from agentgym.env.sub_agents import AsksAgents
from agentgym.env.tasks import SPLITS
from agentgym.envs.gui.replay import Recording
from agentgym.envs.semi_online.traces import read_traces
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import EnvError, ResetNeededError, UsageError, require_known
from agentgym.json_schema.reading import required
from agentgym.registry import make
from agentgym.types import Call, Message, Observation, RewardRole, Task, ToolCall, ToolSpec

OVER = "That was not what was to be done, and nobody goes on from here."


class SemiOnlineEnv(Env):
    """Play another environment's tasks along an expert's recorded actions.

    Each turn compares the agent's action with the expert's. An equal action is played. Otherwise the expert's action is
    played instead (``Turn.played``): later prompts show the expert's action, while training uses the agent's. After
    ``max_patches`` replacements the next wrong action ends the episode; otherwise it ends with the trace. The reward
    measures how close each action was (parts ``format`` and ``match``) and never includes the environment's own reward.
    An episode succeeds if the whole trace was played without a patch. Use it with ``credit.estimator=ui_s1``.

    Args:
        env: the wrapped environment: an id, ``module:Id`` or ``file.py:Id``.
        traces: a file of expert traces, as :func:`~agentgym.envs.semi_online.traces.record_traces` writes it. Its tasks
            are this environment's tasks, in the splits from which they were recorded.
        env_kwargs: arguments of the wrapped environment, equal to those of the recording.
        max_patches: largest number of replaced actions in an episode; None for no limit.

    Raises:
        UsageError: the environment asks sub-agents, or ``max_patches`` is negative.
        CorruptDataError: the file is missing or contains no traces.
        EnvError: on ``reset`` and ``step``, if the environment's state differs from the recorded one.
    """

    _trace = SinceReset[Recording]()

    def __init__(
        self,
        *,
        env: str,
        traces: str | Path,
        env_kwargs: Mapping[str, object] | None = None,
        max_patches: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if max_patches is not None and max_patches < 0:
            raise UsageError(f"max_patches must be at least 0, or None for no limit; got {max_patches}")
        self._recordings = {digest(recording.to_json()): recording for recording in read_traces(traces)}
        self._tasks = {split: tuple(_tasks_of(self._recordings, split)) for split in SPLITS}
        self._world = make(env, **dict(env_kwargs or {}))
        if isinstance(self._world, AsksAgents):
            self._world.close()
            raise UsageError(
                f"{env} asks sub-agents, whose turns no trace of one agent holds; take another environment"
            )
        self.takes_words = self._world.takes_words  # type: ignore[misc]  # an instance's own choice
        self._max_patches = max_patches
        self._at = self.num_patches = 0
        super().__init__(max_turns=max(len(r.actions) for r in self._recordings.values()), render_mode=render_mode)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:
        recording = self._opened(task)
        return self._began(self._world.reset(seed=recording.seed, options={"task": recording.task})[0])

    async def astart(self, task: Task) -> Observation:
        recording = self._opened(task)
        return self._began((await self._world.areset(seed=recording.seed, options={"task": recording.task}))[0])

    def respond(self, action: Message) -> Observation:
        played = self._judged(action)
        return self._over() if played is None else self._moved(self._world.step(played))

    async def arespond(self, action: Message) -> Observation:
        played = self._judged(action)
        return self._over() if played is None else self._moved(await self._world.astep(played))

    def is_success(self) -> bool:
        """Return True if the whole trace was played without a patch."""
        return self._at == len(self._trace.actions) and not self.num_patches

    def _judged(self, action: Message) -> Message | None:
        """Return the action to play: the agent's, the expert's in its place, or None if no patches are left."""
        expert = self.oracle()
        compared = compare(action, expert, self.tools)
        self.award(compared.format, "format", RewardRole.FORMAT)
        self.award(compared.action, "match", RewardRole.PROCESS)
        if compared.is_match:
            return action if expert.calls else replace(action, content=expert.content)
        if bool(expert.calls) != bool(action.calls) or not is_readable(action, self.tools):
            self.refuse()
        if self._max_patches is not None and self.num_patches >= self._max_patches:
            return None
        self.num_patches += 1
        self.play_instead(expert)
        return expert

    def _over(self) -> Observation:
        self.finish()
        return (Message("user", OVER),)

    def _moved(self, stepped: StepReturn | TypedStep) -> Observation:
        """Return the wrapped environment's observation, after checking its state against the expert's."""
        observation, _, terminated, truncated, _ = stepped
        self._at += 1
        self._verify()
        num_left = len(self._trace.actions) - self._at
        if num_left and (terminated or truncated):
            raise EnvError(f"{self._name}: the episode ended {num_left} actions before the expert's did")
        if not num_left:
            self.finish()
        return observation

    def _opened(self, task: Task) -> Recording:
        found = self._recordings.get(task.data.get("trace", ""))
        if found is None:
            raise UsageError(
                f"{self.env_id}: task {task.id!r} is of no trace in the file; take one of tasks(split), of which there "
                f"are {', '.join(f'{len(tasks)} ({split})' for split, tasks in self._tasks.items())}"
            )
        self._trace, self._at, self.num_patches = found, 0, 0
        return found

    def _began(self, observation: Observation) -> Observation:
        self._verify()
        return observation

    def _verify(self) -> None:
        """Check that the wrapped environment is in the recorded state, to which the expert's next action belongs.

        Raises:
            EnvError: it is not.
        """
        recorded, found = self._trace.state_keys[self._at], self._world.state_key()
        if recorded != found:
            raise EnvError(
                f"{self._name}: after {self._at} turns the state was {recorded[:200]!r} when the expert played and is "
                f"{found[:200]!r} now: the environment, its data or its arguments have changed; record the traces anew"
            )

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._world.tools

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the traces' tasks of a split; each of several traces of one task is a separate task."""
        require_known("split", split, self._tasks)
        return self._tasks[split]

    def state_key(self) -> str:
        """Return a digest of the position on the trace, of whether the episode ended there, and of the state.

        The number of patches is left out: it is history, not state.
        """
        return canonical([self._at, self.episode.is_over, self._world.state_key()])

    def oracle(self) -> Message:
        """Return the expert's action at this position."""
        trace = self._trace
        if self._at == len(trace.actions):
            raise ResetNeededError(f"{self._name}: the trace is over")
        return self._world.parse_action(trace.actions[self._at])

    def admissible_actions(self) -> tuple[str, ...]:
        return self._world.admissible_actions()

    def parse_action(self, text: str) -> Message:
        return self._world.parse_action(text)

    def dump_state(self) -> tuple[Snapshot, str, int, int]:
        return self._world.snapshot(), self.task.data["trace"], self._at, self.num_patches

    def load_state(self, state: tuple[Snapshot, str, int, int]) -> None:
        snapshot, trace, self._at, self.num_patches = state
        self._trace = self._recordings[trace]
        self._world.restore(snapshot)

    def end_episode(self) -> None:
        self._world.end_episode()

    async def aend_episode(self) -> None:
        await self._world.aend_episode()

    def stop(self) -> None:
        self._world.close()

    async def aclose(self) -> None:
        await self._world.aclose()
        self.close()

    @property
    def _name(self) -> str:
        return f"{self.env_id} over {self._world.env_id}, task {self.task.id}"


def _tasks_of(recordings: Mapping[str, Recording], split: str) -> list[Task]:
    tasks: list[Task] = []
    num_seen: dict[str, int] = {}
    for key, recording in recordings.items():
        task = recording.task
        if task.split != split:
            continue
        number = num_seen[task.id] = num_seen.get(task.id, 0) + 1
        name = task.id if number == 1 else f"{task.id}#{number}"
        tasks.append(replace(task, id=name, data={**task.data, "trace": key}))
    return tasks


# ---------------------------------------------------------------------- how an agent's action compares with an expert's
# The scores are those of "UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning", as its released code
# has them (X-PLUG/MobileAgent, ``UI-S1/verl/utils/reward_score/gui_traj.py``): 0.1 for the format and 0.9 for the
# action. Of the 0.9 a readable action earns a tenth, one with the same tool half, and an equal one all.

FORMAT_SHARE = 0.1
READABLE, SAME_TOOL, SAME = 0.1, 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing an action with an expert's: its reward, and whether they are equal."""

    format: float
    """Part of the reward for a readable action, 0 or 0.1."""
    action: float
    """Part of the reward for the action itself, 0 to 0.9."""
    is_match: bool


def compare(action: Message, expert: Message, tools: Sequence[ToolSpec]) -> Comparison:
    """Compare an action with an expert's.

    Calls match if tools and arguments are equal; text without calls matches if it is equal up to white space, without
    the thinking. Text that does not match earns nothing, since it has no format to reward.

    Example:
        >>> go = ToolSpec("go", "", {"properties": {"to": {"type": "string"}}, "required": ["to"]})
        >>> def going(to):
        ...     return Message("assistant", "", (ToolCall("go", {"to": to}),))
        >>> compare(going("east"), going("west"), [go])
        Comparison(format=0.1, action=0.45, is_match=False)
    """
    if not expert.calls or not action.calls:
        is_same = not expert.calls and not action.calls and said(action) == said(expert)
        return _scored(SAME if is_same else 0.0, is_same)
    if not is_readable(action, tools):
        return _scored(0.0, False)
    if _calls(action.calls) == _calls(expert.calls):
        return _scored(SAME, True)
    is_same_tool = _names(action.calls) == _names(expert.calls)
    return _scored(SAME_TOOL if is_same_tool else READABLE, False)


def is_readable(action: Message, tools: Sequence[ToolSpec]) -> bool:
    """Return True if every call names an existing tool and has its required arguments."""
    needed = {tool.name: required(tool.parameters, tool.parameters) for tool in tools}
    return all(
        isinstance(call, ToolCall) and call.name in needed and all(name in call.arguments for name in needed[call.name])
        for call in action.calls
    )


def said(action: Message) -> str:
    """Return a message's text after its thinking, with single spaces."""
    return " ".join(action.text.rpartition("</think>")[2].split())


def _scored(action: float, is_match: bool) -> Comparison:
    return Comparison(FORMAT_SHARE if action else 0.0, (1 - FORMAT_SHARE) * action, is_match)


def _calls(calls: Sequence[Call]) -> str:
    return canonical([[call.name, dict(call.arguments)] for call in calls if isinstance(call, ToolCall)])


def _names(calls: Sequence[Call]) -> list[str]:
    return [call.name for call in calls if isinstance(call, ToolCall)]
