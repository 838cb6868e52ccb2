"""Environments: a ``gymnasium.Env`` whose observations and actions are messages.

An author writes two small methods and need not handle tokens, limits or bookkeeping:

* :class:`Env`: ``start(task)`` returns the first observation, ``respond(action)`` answers an assistant message.
* :class:`~agentgym.env.tool_env.ToolEnv`: ``start(task)``, and methods marked ``@tool``.

Inside them, ``self.np_random`` is the only source of randomness, ``self.award(...)`` gives reward parts and
``self.finish(...)`` ends the episode. Callers use Gymnasium's ``reset`` / ``step`` / ``close``, or the same methods as
coroutines (``areset`` / ``astep`` / ``aclose``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Required, TypedDict, TypeVar, cast

import gymnasium
import numpy as np

from agentgym.canonical import canonical
from agentgym.env import shared_observations as _for_make_vec  # noqa: F401  (registers)
from agentgym.env.actions import Action, as_message
from agentgym.env.episode import EpisodeState, refuse_taken_names, with_checked_tasks
from agentgym.env.observations import as_observation
from agentgym.env.rewards import require_finite, role_of
from agentgym.env.spaces import ActionSpace, MessageSpace
from agentgym.env.tasks import SPLITS, SeededTasks, require_tasks
from agentgym.env.worker_thread import WorkerThread
from agentgym.env.working_directory import KeptDirectory
from agentgym.errors import (
    ClosedError,
    EnvError,
    ReplayMismatchError,
    ResetNeededError,
    UsageError,
    unknown_name,
)
from agentgym.settings import checked_turns
from agentgym.types import (
    Message,
    Observation,
    RewardPart,
    RewardRole,
    Task,
    ToolSpec,
)
from agentgym.visible_text import visible

Result = TypeVar("Result")

NO_OUTCOME: Final = float("nan")
"""Default of :meth:`Env.finish`, compared by identity, so that None of a grader is an error."""


class StepInfo(TypedDict, total=False):
    """The ``info`` of a turn. Environments may add keys through :meth:`Env.own_info`."""

    reward_parts: Required[tuple[RewardPart, ...]]
    """Parts of the reward, which is their sum."""
    is_valid: Required[bool]
    """True if the action was possible."""
    success: bool
    """True if the episode succeeded; set only at its end."""
    played: Message
    """Action that the environment executed in place of the given one (:meth:`Env.play_instead`); set only then."""


StepReturn = tuple[Observation, float, bool, bool, dict[str, Any]]
"""Result of :meth:`Env.step`: observation, reward, terminated, truncated, and info, a :class:`StepInfo`."""
TypedStep = tuple[Observation, float, bool, bool, StepInfo]
"""Result of :meth:`Env.astep`: the same five items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A point in an episode to which :meth:`Env.restore` can return, in this or another instance."""

    task: Task
    seed: int
    actions: tuple[Message, ...]
    state_key: str
    native: object = None
    """Result of :meth:`Env.dump_state`; if None, ``restore`` replays the actions."""
    rng_state: Any = None
    progress: Any = None


class Env(gymnasium.Env[Observation, Action]):
    """An environment for language agents. Subclasses implement :meth:`start` and :meth:`respond`."""

    metadata: dict[str, object] = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012  (Gymnasium's own declaration)
    max_turns: int | None = None
    """Turns after which the episode is truncated; None means no limit."""
    is_blocking: ClassVar[bool] = False
    """True if a step takes so long (over about a millisecond) that rollouts should run it in its own thread."""
    is_live: bool | None = None
    """True if episodes ask a service that costs money or effort, so that little is played which was not asked for:
    episodes for a tokenizer, random demonstrations, checks. None: true if an episode connects to an address."""
    longest_step_s: float = 0.0
    """Longest step in seconds under the environment's own limits. Rollouts wait at least this long before they count a
    step as hung."""
    needs_images: bool = False
    """True if images of the observations hold what their texts do not, so that a model that reads text cannot play."""
    takes_words: ClassVar[bool] = False
    """True if a message without a call is a valid action although there are tools, such as words to a user. Otherwise
    the turn is void."""
    success_outcome: ClassVar[float] = 1.0
    """Smallest sum of outcome parts that makes an episode a success."""

    reset_options: ClassVar[tuple[str, ...]] = ("task", "split")
    """Keys that ``reset(options=...)`` accepts; subclasses that read further keys add them."""

    def __init__(self, *, max_turns: int | None = None, render_mode: str | None = None) -> None:
        if max_turns is not None:
            self.max_turns = checked_turns(max_turns)
        self.render_mode = render_mode
        self.observation_space = MessageSpace()
        self.action_space = ActionSpace(self.tools)
        self.__episode = EpisodeState()
        self.__is_closed = False
        self.__thread: WorkerThread | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        refuse_taken_names(cls)
        with_checked_tasks(cls)

    # ------------------------------------------------------------------------------------- methods to implement

    def start(self, task: Task) -> str | Observation:
        """Set up the state for a task and return the first observation."""
        raise NotImplementedError(f"{type(self).__name__} must implement start(task)")

    def respond(self, action: Message) -> str | Observation:
        """Execute an assistant message and return the next observation."""
        raise NotImplementedError(f"{type(self).__name__} must implement respond(action)")

    async def arespond(self, action: Message) -> str | Observation:
        """Execute an assistant message as a coroutine. Override this method *or* ``respond``."""
        if self.is_blocking:
            return await self._in_thread(self.respond, action)
        return self.respond(action)

    async def astart(self, task: Task) -> str | Observation:
        """Set up the state for a task as a coroutine. Override this method *or* ``start``."""
        if self.is_blocking:
            return await self._in_thread(self.start, task)
        return self.start(task)

    def end_episode(self) -> None:
        """Free resources that only a running episode needs, such as a sandbox from a pool that other episodes wait for.

        Rollouts call it when they leave an episode, finished or not.
        """

    async def aend_episode(self) -> None:
        """Run :meth:`end_episode` as a coroutine, in the thread in which ``start`` ran."""
        if self.is_blocking:
            await self._in_thread(self.end_episode)
        else:
            self.end_episode()

    def stop(self) -> None:
        """Free the environment's resources. ``close`` calls it once."""

    def own_info(self) -> Mapping[str, object]:
        """Return the environment's own keys for ``info``. Called once at the end of each turn."""
        return {}

    # ------------------------------------------------------------------------------------------ methods for authors

    def award(self, value: float, name: str = "outcome", role: RewardRole | str = RewardRole.OUTCOME) -> None:
        """Add a named part to this turn's reward.

        Args:
            value: a finite number.
            role: a :class:`RewardRole`, or its name as in ``"process"``.

        Raises:
            EnvError: the value is no number, NaN or infinite, or there is no such role.
        """
        given: object = value
        try:
            if isinstance(given, str | bytes | bytearray):  # float("1") is 1.0, and float("won") fails in mid-run
                raise TypeError
            number = float(value)
        except (TypeError, ValueError):
            raise EnvError(
                f"{self.env_id} {self.__episode.place}: the reward part {name!r} is {value!r}, expected a number; a "
                "grader that returned nothing is a fault of the environment, and no reward of 0"
            ) from None
        part = RewardPart(name, number, role_of(role))
        require_finite((part,), f"{self.env_id} {self.__episode.place}")
        self.__episode.parts.append(part)
        if part.role is RewardRole.OUTCOME:
            self.__episode.outcome += part.value

    def finish(self, outcome: float = NO_OUTCOME) -> None:
        """End the episode after this turn, with an outcome if one is given.

        Args:
            outcome: a finite number; left out, the episode ends without one.

        Raises:
            EnvError: the outcome is None, as of a grader that returned nothing, or is no finite number.
        """
        if outcome is not NO_OUTCOME:
            self.award(outcome)
        self.__episode.is_over = True

    def truncate(self) -> None:
        """Truncate the episode after this turn, for example because of a limit inside the environment."""
        self.__episode.is_over = self.__episode.is_cut_off = True

    def is_success(self) -> bool:
        """Return True if the finished episode is a success: its outcome parts sum to at least ``success_outcome``."""
        return self.__episode.outcome >= self.success_outcome - 1e-9

    def refuse(self) -> None:
        """Mark this turn's action as impossible in the current state (``Turn.is_valid`` becomes False)."""
        self.__episode.is_turn_valid = False

    def play_instead(self, action: Message) -> None:
        """Record the action that was executed in place of this turn's action. ``info["played"]`` and later prompts show
        it.
        """
        self.__episode.played = action

    @property
    def episode(self) -> EpisodeState:
        """Bookkeeping of the running episode; read-only."""
        return self.__episode

    @property
    def is_closed(self) -> bool:
        """True after :meth:`close`."""
        return self.__is_closed

    @property
    def turn(self) -> int:
        """Number of turns taken in this episode."""
        return self.__episode.turn

    # ------------------------------------------------------------------------------------------------ Gymnasium's API

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        ``options`` may hold ``task`` (a :class:`Task`, a task id, or an index) and ``split`` (by default the first
        split that has tasks; an id is searched in all splits). Without ``task``, the seed draws one. Without ``seed``,
        the task's own seed is used. Task and seed determine the start state.

        Raises:
            UsageError: there is no such task or split, an option is not one of ``reset_options``, or the seed is not a
                whole number from 0 on.
            ClosedError: after ``close``.
        """
        with KeptDirectory(self.env_id):
            task = self._begin(seed, options)
            return self._begun(self.start(task))

    async def areset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        """Begin an episode, as :meth:`reset` does."""
        with KeptDirectory(self.env_id):
            task = self._begin(seed, options)
            return self._begun(await self.astart(task))

    def step(self, action: Action) -> StepReturn:
        """Take one turn. The last item returned is a :class:`StepInfo`.

        Args:
            action: an assistant message, text as a person types it, a ``ToolCall``, a list of calls, or a dict in
                OpenAI's format.

        Raises:
            UsageError: the action has none of these forms.
            ResetNeededError: before ``reset`` or after the end.
            ClosedError: after ``close``.
        """
        with KeptDirectory(self.env_id):
            message = self._enter(action)
            observation, reward, terminated, truncated, info = self._leave(self.respond(message))
        return observation, reward, terminated, truncated, {**info}

    async def astep(self, action: Action) -> TypedStep:
        """Take one turn, as :meth:`step` does."""
        with KeptDirectory(self.env_id):
            message = self._enter(action)
            return self._leave(await self.arespond(message))

    def render(self) -> str | None:
        """Return the last observation as text if ``render_mode`` is ``ansi``. With ``human``, each observation is
        printed.
        """
        return "\n".join(m.text for m in self.__episode.last_observation) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Free all resources; a second call does nothing."""
        if self.__is_closed:
            return
        self.__is_closed = True
        self.__episode.is_over = True
        self.stop()
        if self.__thread is not None:
            self.__thread.stop()

    async def aclose(self) -> None:
        """Free all resources, as :meth:`close` does. ``stop`` runs in the thread in which ``start`` ran."""
        if self.is_blocking and not self.__is_closed and self.__thread is not None and not self.__thread.is_busy:
            self.__is_closed = True
            self.__episode.is_over = True
            try:
                await self._in_thread(self.stop)
            finally:
                self.__thread.stop()
        else:
            self.close()

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def env_id(self) -> str:
        """Id by which the environment was made."""
        return self.spec.id if self.spec is not None else type(self).__name__

    @property
    def task(self) -> Task:
        """Task of the current episode."""
        if self.__episode.task is None:
            raise ResetNeededError(f"{self.env_id}: no task before reset()")
        return self.__episode.task

    @property
    def task_type(self) -> str:
        """Kind of the current task, by which evaluations group results; empty if tasks have no kinds.

        By default the task's ``data["task_type"]``, or its ``data["level"]``.
        """
        task = self.__episode.task
        data = {} if task is None else task.data
        return str(data.get("task_type", f"level {data['level']}" if "level" in data else ""))

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools that a model may call; empty if actions are free text."""
        return ()

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split (``train``, ``valid``, ``test``). No task is in two splits."""
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000)

    def state_key(self) -> str:
        """Return a canonical text of the *current* state, without history, counters or random ids.

        By default it is the last observation, which GiGPO's authors use. Environments with hidden state should override
        it.
        """
        return canonical([message.text for message in self.__episode.last_observation])

    def oracle(self) -> Message:
        """Return the next action of a gold policy in the current state.

        Raises:
            UsageError: the environment has no gold policy.
        """
        raise UsageError(f"{self.env_id} has no oracle; choose another policy (random, or a model folder)")

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Return cheats that attack the grader instead of solving the task, by name: the actions of each from the start
        state.

        The conformance kit plays them, and none may earn an outcome. Environments that grade an agent's code should
        list some.
        """
        return {}

    def admissible_actions(self) -> tuple[str, ...]:
        """Return the possible actions in the current state, as text for :meth:`parse_action`; empty if they are not
        known.
        """
        return ()

    def parse_action(self, text: str) -> Message:
        """Convert a person's input to an assistant message."""
        return Message("assistant", text)

    # -------------------------------------------------------------------------------------------------- snapshots

    def dump_state(self) -> object:
        """Return a copy of the environment's state, or None if the state can be rebuilt only by replaying actions."""
        return None

    def load_state(self, state: Any) -> None:
        """Load a state that :meth:`dump_state` returned. A state may be loaded several times."""
        raise NotImplementedError(f"{type(self).__name__} implements dump_state but not load_state")

    async def adump_state(self) -> Any:
        """Return a copy of the state, as :meth:`dump_state` does."""
        return self.dump_state()

    async def aload_state(self, state: Any) -> None:
        """Load a state, as :meth:`load_state` does."""
        self.load_state(state)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current point of the episode."""
        return self._snapshot_with(self.dump_state())

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot: by loading its native state if there is one, else by replaying the actions from the
        seed.

        Raises:
            ReplayMismatchError: the state that is reached differs from the snapshot's.
        """
        if snapshot.native is None:
            self.reset(seed=snapshot.seed, options={"task": snapshot.task})
            for action in snapshot.actions:
                self.step(action)
        else:
            self._begin(snapshot.seed, {"task": snapshot.task})
            self.load_state(snapshot.native)
            self._go_on_from(snapshot)
        self._check_state(snapshot)

    async def arestore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot with a native state, as :meth:`restore` does.

        Raises:
            UsageError: the snapshot holds only actions; replay them with :meth:`astep`.
            ReplayMismatchError: the state that is reached differs from the snapshot's.
        """
        if snapshot.native is None:
            raise UsageError(f"{self.env_id}: arestore needs a native snapshot; replay its actions with astep")
        if self.is_blocking:
            await self._in_thread(self.restore, snapshot)
        else:
            self._begin(snapshot.seed, {"task": snapshot.task})
            await self.aload_state(snapshot.native)
            self._go_on_from(snapshot)
            self._check_state(snapshot)

    async def asnapshot(self) -> Snapshot:
        """Return a snapshot of the current point, as :meth:`snapshot` does."""
        if self.is_blocking:
            return await self._in_thread(self.snapshot)
        return self._snapshot_with(await self.adump_state())

    # ---------------------------------------------------------------------------------------------------- private

    def _snapshot_with(self, native: Any) -> Snapshot:
        return Snapshot(
            task=self.task,
            seed=self.__episode.seed,
            actions=tuple(self.__episode.actions),
            state_key=self.state_key(),
            native=native,
            rng_state=self.np_random.bit_generator.state,
            progress=self.__episode.progress,
        )

    def _go_on_from(self, snapshot: Snapshot) -> None:
        self.__episode.resume(snapshot.progress, snapshot.actions)
        self.np_random.bit_generator.state = snapshot.rng_state

    def _check_state(self, snapshot: Snapshot) -> None:
        if self.state_key() != snapshot.state_key:
            is_replayed = snapshot.native is None
            done = f"{len(snapshot.actions)} replayed actions" if is_replayed else "load_state()"
            cause = "is all randomness drawn from self.np_random" if is_replayed else "does dump_state() return a copy"
            raise ReplayMismatchError(
                f"{self.env_id}: after {done} the state is {self.state_key()!r}, recorded was {snapshot.state_key!r}; "
                f"{cause}?"
            )

    def _begin(self, seed: int | None, options: dict[str, object] | None) -> Task:
        if self.__is_closed:
            raise ClosedError(f"{self.env_id} is closed; make a new one")
        if unknown := sorted(set(options or {}) - set(self.reset_options)):
            raise unknown_name(f"option of {self.env_id}'s reset:", unknown[0], self.reset_options)
        if seed is not None:
            if not isinstance(seed, int | np.integer) or seed < 0:
                raise UsageError(f"{self.env_id}: seed must be a whole number from 0 on, got {seed!r:.40}")
            seed = int(seed)
        task = self._pick_task(seed, options or {})
        self.__episode = EpisodeState(task=task, seed=task.seed if seed is None else seed, is_over=False)
        super().reset(seed=self.__episode.seed)
        return task

    def _begun(self, said: str | Observation) -> tuple[Observation, dict[str, object]]:
        self._observe(said, "start(task)")
        self.__episode.parts = []
        return self.__episode.last_observation, {"task_id": self.task.id}

    def _pick_task(self, seed: int | None, options: Mapping[str, Any]) -> Task:
        task = options.get("task")
        if isinstance(task, Task):
            return task
        if isinstance(task, str):
            return self._task_by_id(task, options.get("split"))
        split = options.get("split") or self._first_split()
        tasks = self.tasks(split)
        if isinstance(task, int | np.integer):
            if not 0 <= task < len(tasks):
                raise UsageError(f"{self.env_id}: no task {task} in split {split!r}, which has {len(tasks)}")
            return tasks[int(task)]
        if task is not None:
            raise UsageError(f"{self.env_id}: the option task is a Task, an id or an index; got {task!r}")
        tasks = require_tasks(self.tasks, split, self.env_id)
        rng = self.np_random if seed is None else np.random.default_rng(seed)
        return tasks[int(rng.integers(len(tasks)))]

    def _first_split(self) -> str:
        """Return the first split that has tasks. Benchmarks may have no training split."""
        for name in SPLITS:
            with suppress(UsageError):
                if len(self.tasks(name)):
                    return name
        return SPLITS[0]

    def _task_by_id(self, task_id: str, split: str | None) -> Task:
        pools = []
        for name in SPLITS if split is None else (split,):
            with nullcontext() if split is not None else suppress(UsageError):  # an environment may lack a split
                pools.append(self.tasks(name))
        number = task_id.rpartition("-")[2]
        for tasks in pools:  # ids often end in their index, which saves a search through millions of lazily made tasks
            if number.isdecimal() and int(number) < len(tasks) and tasks[int(number)].id == task_id:
                return tasks[int(number)]
        for task in itertools.chain.from_iterable(pools):
            if task.id == task_id:
                return task
        raise UsageError(f"{self.env_id}: no task {task_id!r} in {'any split' if split is None else split}")

    def _enter(self, action: Action) -> Message:
        if self.__is_closed:
            raise ClosedError(f"{self.env_id} is closed; make a new one")
        if self.__episode.is_over:
            raise ResetNeededError(f"{self.env_id}: the episode is over or has not begun; call reset() before step()")
        message = as_message(action, self.parse_action)
        self.__episode.enter(message)
        return message

    def _observe(self, said: str | Observation, source: str) -> None:
        self.__episode.last_observation = as_observation(said, f"{type(self).__name__}.{source}")
        if self.render_mode == "human":
            print(visible("\n".join(message.text for message in self.__episode.last_observation)), flush=True)

    def _leave(self, said: str | Observation) -> TypedStep:
        self._observe(said, "respond(action)")
        parts = tuple(self.__episode.parts)
        terminated = self.__episode.is_over and not self.__episode.is_cut_off
        is_out_of_turns = self.max_turns is not None and self.__episode.turn >= self.max_turns
        truncated = self.__episode.is_cut_off or (not terminated and is_out_of_turns)
        self.__episode.is_over = terminated or truncated
        info: StepInfo = {"reward_parts": parts, "is_valid": self.__episode.is_turn_valid}
        if self.__episode.played is not None:
            info["played"] = self.__episode.played
        if self.__episode.is_over:
            info["success"] = self.is_success()
        info = cast(StepInfo, {**info, **self.own_info()})
        return self.__episode.last_observation, sum((part.value for part in parts), 0.0), terminated, truncated, info

    async def _in_thread(self, function: Callable[..., Result], *args: object) -> Result:
        if self.__thread is None:
            self.__thread = WorkerThread(self.env_id)
        return await self.__thread.call(function, *args)
