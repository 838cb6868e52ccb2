"""``agentgym/SWE-v0``: resolve an issue in a small repository with a shell and file tools; the result is a patch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from agentgym.call_syntax import format_call
from agentgym.env.tasks import SeededTasks
from agentgym.envs.code.harbor import HarborTask, HarborTasks, load_harbor_task, task_folders
from agentgym.envs.code.harbor_config import host_values
from agentgym.envs.code.harbor_grading import LIMITS as HARBOR_LIMITS
from agentgym.envs.code.harbor_grading import environment_of, grade_harbor, kind_of, lay_out
from agentgym.envs.code.harbor_verifier import agent_variables
from agentgym.envs.code.mutations import BUG_KINDS
from agentgym.envs.code.patches import entries_of, patch_of
from agentgym.envs.code.problems import RepairProblem
from agentgym.envs.code.repair_env import RepairEnv
from agentgym.envs.code.repositories import IssueDetail, RepositoryDifficulty, generate_repository
from agentgym.envs.code.shared_pool import SharedPool, shared_pool
from agentgym.envs.code.themes import THEMES
from agentgym.envs.code.workspace import Assignment, Files, Grade, content_key
from agentgym.errors import UsageError, require_known
from agentgym.sandbox import Sandbox, Snapshot
from agentgym.tools.files import EditFileTool, ReadFileTool, WriteFileTool
from agentgym.tools.shell import BashTool
from agentgym.tools.submit import SubmitTool
from agentgym.types import Message, Task, ToolCall

Source = Literal["generated", "harbor"]
_TEST = "python3 -B -m unittest 2>&1 | sed 's/ in [0-9.]*s$//'"  # makes the output of programs deterministic

_MOST_RUNS = 5  # of a verifier: for the work, twice; for the unchanged workspace; for the solution, which runs before


class SWEEnv(RepairEnv, SubmitTool, BashTool, WriteFileTool, EditFileTool, ReadFileTool):
    """Resolve an issue in a small repository. Hidden tests grade the work, and the result is a patch.

    ``info["patch"]`` of the last step is the patch between the initial and the final workspace.

    Args:
        source: ``generated`` (from a seed, needs no data) or ``harbor`` (task directories in Harbor's format).
        themes: themes of generated repositories. For this and the next three see
            :class:`~agentgym.envs.code.repositories.RepositoryDifficulty`.
        num_bugs: number of modules with a bug.
        issue: ``example`` or ``plain``.
        bug_kinds: kinds of bugs.
        harbor_path: a folder of task directories, or one of them, see :mod:`agentgym.envs.code.harbor`.
        harbor_split: split of all these tasks.
        others: see :class:`~agentgym.envs.code.repair_env.RepairEnv`.

    Raises:
        UsageError: a value is out of range, or there is no Harbor task.

    Example:
        >>> env = SWEEnv(themes=("accounts",), sandbox="process")
        >>> observation, info = env.reset(seed=0)
        >>> is_over = False
        >>> while not is_over:
        ...     observation, reward, is_over, _, info = env.step(env.oracle())
        >>> print(info["success"], info["patch"].splitlines()[0])
        True diff --git a/bank/book.py b/bank/book.py
        >>> env.close()
    """

    max_turns = 20

    def __init__(
        self,
        *,
        source: Source = "generated",
        themes: Sequence[str] = tuple(THEMES),
        num_bugs: int = 1,
        issue: IssueDetail = "example",
        bug_kinds: Sequence[str] = tuple(BUG_KINDS),
        harbor_path: str | Path | None = None,
        harbor_split: str = "test",
        **others: Any,
    ) -> None:
        require_known("source", source, get_args(Source))
        if (source == "harbor") != (harbor_path is not None):
            raise UsageError("harbor_path, a folder of task directories, goes with source='harbor', and only with it")
        if harbor_split != "test" and harbor_path is None:
            raise UsageError("harbor_split is the split of harbor_path's tasks, and goes with source='harbor' alone")
        self.source: Source = source
        self.difficulty = RepositoryDifficulty(themes, num_bugs, issue, bug_kinds)
        self.harbor_path, self.harbor_split = harbor_path, harbor_split
        if harbor_path is not None:
            task_folders(harbor_path)
        self._harbor: HarborTask | None = None
        self._harbor_reward = 0.0
        self._harbor_rewards: Mapping[str, float] = {}
        self._given = Snapshot(b"")  # the initial workspace
        super().__init__(**others)
        self._own_longest_step_s = self.longest_step_s
        if harbor_path is not None:
            self.longest_step_s += _MOST_RUNS * HARBOR_LIMITS.wall_s

    # ------------------------------------------------------------------------------------------------- an episode

    @property
    def pool(self) -> SharedPool:
        return shared_pool(self.kind if self._harbor is None else kind_of(self._harbor, self.kind))

    def assign(self, task: Task) -> Assignment:
        self._harbor = self._harbor_task(task)
        if self._harbor is None:
            return super().assign(task)
        return Assignment(text=environment_of(self._harbor), editable=("*",))

    def start(self, task: Task) -> str:
        text = super().start(task)
        if self._harbor is not None:
            self.longest_step_s = self._own_longest_step_s + _MOST_RUNS * self.pool.kind.limits.wall_s
            lay_out(self._harbor, self.sandbox)
            self._look()
        self._given = self._workspace
        return text

    def variables(self, sandbox: Sandbox) -> Mapping[str, str]:
        return {} if self._harbor is None else agent_variables(self._harbor, sandbox)

    def grade(self, work: Files) -> Grade:
        if self._harbor is None:
            return super().grade(work)
        found = grade_harbor(self.pool, self._harbor, self._given, self._workspace)
        self._harbor_reward, self._harbor_rewards = found.reward, found.rewards
        return found.grade

    def outcome_of(self, grade: Grade) -> float:
        if self._harbor is None:
            return super().outcome_of(grade)
        return self._harbor_reward if self.outcome == "share" else float(grade.is_success)

    def is_edited(self, work: Files) -> bool:
        if self._harbor is None:
            return super().is_edited(work)
        return content_key(self._workspace) != content_key(self._given)

    def patch(self) -> str:
        """Return the workspace's changes since the start as a patch for ``git apply``."""
        return patch_of(entries_of(self._given), entries_of(self._workspace))

    def oracle(self) -> Message:
        if self._harbor is None:
            return super().oracle()
        scripts = {path: entry for path, entry in self._harbor.solution.items() if not entry.is_folder}
        if set(scripts) != {"solve.sh"}:
            raise UsageError(f"Harbor task {self._harbor.name!r} has no solution that is one script")
        call = ToolCall("submit")
        if content_key(self._workspace) == content_key(self._given):
            places = {self._harbor.workdir: self.sandbox.workspace}  # absolute: the script may go to another folder
            script = self._harbor.placed(scripts["solve.sh"].data.decode(errors="replace"), places)
            values = host_values(self._harbor.solution_env, f"Harbor task {self._harbor.name!r}, [solution.env]")
            exports = [
                f"export {name}={shlex.quote(self._harbor.placed(value, places))}\n" for name, value in values.items()
            ]
            solve = ToolCall("bash", {"command": "".join([*exports, script])})
            call = call if self._has_called(solve) else solve
        return Message("assistant", format_call(call, self.tools), (call,))

    def test_call(self) -> ToolCall:
        return ToolCall("bash", {"command": _TEST})

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def own_info(self) -> Mapping[str, object]:
        if not self.episode.is_over:
            return {}
        return {"patch": self.patch()} | ({"harbor_rewards": dict(self._harbor_rewards)} if self._harbor else {})

    def tasks(self, split: str) -> Sequence[Task]:
        """Return generated tasks (1,000,000 for training, 1,000 each for the others), or Harbor's in their split."""
        if self.harbor_path is None:
            data = {"source": "generated", **self.difficulty.as_data()}
            return SeededTasks(split, 1_000_000 if split == "train" else 1_000, data)
        if split != self.harbor_split:
            raise UsageError(f"the Harbor tasks are of the split {self.harbor_split!r}, not {split!r}")
        return HarborTasks(self.harbor_path, split, {"source": "harbor"})

    def problem_of(self, task: Task) -> RepairProblem:
        data = self.difficulty.as_data() | dict(task.data)
        return generate_repository(task.seed, task.split, RepositoryDifficulty.from_data(data))

    def editable_of(self, problem: RepairProblem) -> tuple[str, ...]:
        packages = {path.partition("/")[0] for path in problem.solution}
        return tuple(f"{package}/*" for package in sorted(packages))

    def dump_state(self) -> Any:
        return super().dump_state(), self._given

    def load_state(self, state: Any) -> None:
        inner, self._given = state
        super().load_state(inner)

    # --------------------------------------------------------------------------------------------------- private

    def _has_called(self, wanted: ToolCall) -> bool:
        """Return True if the last action was a call, such as a solution's script that changes no file."""
        last = self.episode.actions[-1].calls if self.episode.actions else ()
        made = [(call.name, call.arguments) for call in last if isinstance(call, ToolCall)]
        return (wanted.name, wanted.arguments) in made

    def _pick_task(self, seed: int | None, options: Any) -> Task:
        if self.source == "harbor":
            options = {"split": self.harbor_split, **options}
        return super()._pick_task(seed, options)

    def _harbor_task(self, task: Task) -> HarborTask | None:
        if task.data.get("source", self.source) != "harbor":
            return None
        if self.harbor_path is None:
            raise UsageError(
                f"{self.env_id}: the task {task.id!r} is a Harbor task; harbor_path=... says where they are"
            )
        for folder in task_folders(self.harbor_path):
            if folder.name == task.data.get("name"):
                found = load_harbor_task(folder)
                if found.content_hash != task.data.get("content_hash", found.content_hash):
                    raise UsageError(f"Harbor task {found.name!r} differs from the one that task {task.id} was made of")
                return found
        raise UsageError(f"{self.env_id}: no Harbor task {task.data.get('name')!r} in {str(self.harbor_path)!r}")
