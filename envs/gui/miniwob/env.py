"""``agentgym/MiniWoB-v0``: the tasks of MiniWoB++, on their own pages in a real browser.

Source: Liu, Guu, Pasupat, Shi, Liang, "Reinforcement Learning on Web Interfaces Using Workflow-Guided Exploration"
(ICLR 2018), package ``miniwob`` (MIT). A success is a raw reward, without the discount for time, above zero, as in
BrowserGym.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from agentgym.canonical import digest
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.miniwob.solvers import SOLVERS
from agentgym.envs.gui.miniwob.tasks import EXCLUDED, RELOADED, TASKS, TOLD_APART, MiniWoBTasks
from agentgym.envs.gui.miniwob.view import View
from agentgym.envs.gui.observe import lines_of
from agentgym.envs.gui.site import Folder, Sites
from agentgym.errors import ConfigError, EnvError, MissingExtraError, UsageError, require_known
from agentgym.settings import Range, check_number
from agentgym.types import ImagePart, Message, Task

DataMode = Literal["default", "train", "test"]
_SPLITS = ("train", "valid", "test")
_HOST = "miniwob.localhost"
_STATE = """(() => typeof core === "undefined" || core.EPISODE_MAX_TIME !== 1e9 ? null : {
  isDone: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, page: document.body.innerHTML,
})()"""


class MiniWoBEnv(GuiEnv):
    """Do what one sentence asks for on a page of 160 by 210 pixels.

    Args:
        task: a name of :data:`~agentgym.envs.gui.miniwob.tasks.TASKS`, several of them, or ``all``.
        reward: ``success`` gives 1 for a raw reward above ``success_above`` and 0 for others; ``raw`` gives the page's
            own, from -1 to 1.
        success_above: raw reward above which an episode is a success. A few tasks (checkboxes, colours, angles,
            selected text ...) give a part of 1 for a part of the work; a success is then only "better than nothing",
            as in BrowserGym. 0.99 asks for all of it.
        data_mode: ``test`` changes the pages of :data:`~agentgym.envs.gui.miniwob.tasks.TOLD_APART`: the two called
            transfer have other tasks than with ``train``, and three of mails other wordings.
        brief: True for observations of only those lines of the tree that are on the screen, without address and title,
            for small models.
        max_turns: turns after which an episode is truncated.
        options: those of :class:`~agentgym.envs.gui.gui_env.GuiEnv`.
    """

    clicks_through_covers = True  # in click-test-2 and others one button can lie under another
    sees_all_elements = True

    def __init__(
        self,
        *,
        task: str | Sequence[str] = "all",
        reward: Literal["success", "raw"] = "success",
        success_above: float = 0.0,
        data_mode: DataMode = "default",
        brief: bool = False,
        max_turns: int = 20,
        **options: Any,
    ) -> None:
        require_known("reward", reward, ("success", "raw"))
        require_known("data mode", data_mode, get_args(DataMode))
        check_number("success_above", success_above, Range(at_least=-1, below=1))
        self._names = _names(task)
        if data_mode != "default" and not set(self._names) & set(TOLD_APART):
            raise ConfigError(
                f"data_mode={data_mode} changes no page of these tasks; it changes {', '.join(TOLD_APART)}"
            )
        self._reward, self._success_above, self._data_mode, self._is_brief = reward, success_above, data_mode, brief
        self.goal = ""
        self.raw_reward: float | None = None
        """The page's own reward once the episode has ended there; never part of an observation."""
        self.source = ""
        """The page's markup, as an observation of ``html`` would show it."""
        options = {"actions": ("elements", "pixels", "motion"), "viewport": (332, 214), **options}
        super().__init__(max_turns=max_turns, **options)

    def tasks(self, split: str) -> MiniWoBTasks:
        """100,000 seeds of every name to train on, 1,000 to validate, 1,000 to test; the names in turn."""
        return MiniWoBTasks(split, self._names)

    def sites(self, task: Task) -> Sites:
        return {_HOST: _pages()}

    def start_url(self, task: Task) -> str:
        name = str(task.data.get("task"))
        require_known("task of MiniWoB++", name, TASKS)
        return f"http://{_HOST}/miniwob/{name}.html"

    def kept_page(self, task: Task) -> str | None:
        name = str(task.data["task"])
        return None if name in RELOADED else name

    async def set_up(self, task: Task) -> str:
        self.raw_reward = None
        script = _page_script().replace("__MODE__", json.dumps(self._data_mode))
        self.goal = str(await self.evaluate(script.replace("__SEED__", json.dumps(str(self.episode.seed)))))
        return self.goal

    async def score(self) -> float | None:
        if self.raw_reward is None:
            return None
        return self.raw_reward if self._reward == "raw" else float(self.raw_reward > self._success_above)

    def is_success(self) -> bool:
        return self.raw_reward is not None and self.raw_reward > self._success_above

    def hidden_state(self) -> object:
        return [self.goal, self.raw_reward]

    @property
    def task_type(self) -> str:
        """The name of the page."""
        return str(self.task.data["task"])

    def oracle(self) -> Message:
        """Return the next action of this task's scripted policy, which sees what the agent can see: goal, tree and
        markup.

        Raises:
            UsageError: no policy is written for this task.
        """
        name = str(self.task.data["task"])
        if name not in SOLVERS:
            raise UsageError(f"{self.env_id} has no oracle for {name!r}; it has one for {', '.join(SOLVERS)}")
        return self.message_of(SOLVERS[name](View(self.goal, self.page, self.source)))

    # ---------------------------------------------------------------------------------------------------- private

    async def _look(self) -> tuple[str, list[ImagePart]]:
        """Observe as the base class does, and add the page's markup to the state, since no tree shows drawings."""
        text, images = await super()._look()
        async with self.session.browser.failing(f"{self.env_id}: reading the outcome"):
            state = await self.evaluate(_STATE)
        if state is None:  # the agent has left the page
            state = {"isDone": True, "raw": -1.0, "page": ""}
        self.source = state["page"]
        if state["isDone"] and self.raw_reward is None:
            self.raw_reward = _checked(state["raw"])
        self._key = digest([self._key, state["page"], self.hidden_state()])
        return text, images

    def tree_text(self) -> str:
        if not self._is_brief:
            return super().tree_text()
        lines = lines_of([True] * len(self.page.nodes), self.page)[0]
        return "\n".join(line.strip() for line in lines)

    def _task_by_id(self, task_id: str, split: str | None) -> Task:
        for name in _SPLITS if split is None else (split,):
            if (found := self.tasks(name).named(task_id)) is not None:
                return found
        raise UsageError(f"{self.env_id}: no task {task_id!r}; ids are a name and a seed, such as {self._names[0]}-0")


def _names(task: str | Sequence[str]) -> tuple[str, ...]:
    if task == "all":
        return TASKS
    names = (task,) if isinstance(task, str) else tuple(task)
    if not names:
        raise ConfigError("task must name at least one task of MiniWoB++, or be 'all'")
    for name in names:
        if name in EXCLUDED:
            raise ConfigError(f"{name!r} is not among our tasks of MiniWoB++: {EXCLUDED[name]}")
        require_known("task of MiniWoB++", name, TASKS)
    return names


def _checked(raw: object) -> float:
    """Return a page's reward. A value that is not a number is an infrastructure failure."""
    if not isinstance(raw, int | float) or not math.isfinite(raw):
        raise EnvError(f"the page returned {raw!r} as its reward, expected a number")
    return float(raw)


@cache
def _pages() -> Folder:
    """Return the package's pages, found without importing it, which registers environments and imports selenium."""
    found = importlib.util.find_spec("miniwob")
    if found is None or found.origin is None:
        raise MissingExtraError("MiniWoB++", "miniwob")
    return Folder(Path(found.origin).parent / "html")


@cache
def _page_script() -> str:
    return (importlib.resources.files("agentgym.envs.gui.miniwob") / "page.js").read_text(encoding="utf-8")
