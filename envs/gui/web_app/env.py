"""``agentgym/WebApp-v0``: tasks in a self-hosted web application, graded by its database."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.env.tasks import SeededTasks
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.site import Sites, Upstream
from agentgym.envs.gui.web_app.grading import Values, draw_values, function_of, grade, state_rows, worded
from agentgym.envs.gui.web_app.process import AppProcess
from agentgym.envs.gui.web_app.spec import WebApp, load_web_app
from agentgym.errors import UsageError
from agentgym.types import Message, Observation, Task, ToolCall

PYTHON = "AGENTGYM_WEBAPP_PYTHON"
"""Environment variable with the interpreter for applications, if it is not this process's."""


class WebAppEnv(GuiEnv):
    """Do a task in a real web application that runs on this machine, and say ``done``.

    Every environment has a copy of the application for itself: a process on a free port, with data that are copied
    back before each episode. It ends with the environment, or with the process that made it.

    Args:
        app: an application that comes with agentgym (``guestbook``, ``oscar``), the path of a TOML file that
            describes one, or a :class:`~agentgym.envs.gui.web_app.spec.WebApp`.
        kinds: ids of the tasks to use; by default all.
        python: the interpreter that runs it, if it is written in Python; ``$AGENTGYM_WEBAPP_PYTHON`` or this one by
            default. Applications with old pins need a separate environment.
        max_turns: turns after which an episode is truncated.
        options: those of :class:`~agentgym.envs.gui.gui_env.GuiEnv`.

    Raises:
        CorruptDataError: the file does not describe an application.
        UsageError: there is no such application, or none of its tasks has such an id.
    """

    def __init__(
        self,
        *,
        app: str | Path | WebApp = "guestbook",
        kinds: Sequence[str] = (),
        python: str | None = None,
        max_turns: int = 30,
        **options: Any,
    ) -> None:
        self.app = app if isinstance(app, WebApp) else load_web_app(app)
        self._kinds = tuple(self.app.task(kind).id for kind in kinds) or tuple(task.id for task in self.app.tasks)
        self._python = python or os.environ.get(PYTHON) or sys.executable
        self._copy: AppProcess | None = None
        super().__init__(max_turns=max_turns, **options)

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 to train on, 1,000 to validate, 1,000 to test; the kinds in turn."""
        size = 1_000_000 if split == "train" else 1_000
        return SeededTasks(split, size, lambda seed: {"kind": self._kinds[seed % len(self._kinds)]})

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:
        self.end_episode()  # so that no request of the last episode changes the new data
        self._begin_app()
        return super().start(task)

    async def astart(self, task: Task) -> Observation:
        await self.aend_episode()
        await asyncio.to_thread(self._begin_app)
        return await super().astart(task)

    def _begin_app(self) -> None:
        if self._copy is None:
            self._copy = AppProcess(self.app, self._python)
        self._copy.begin()

    def sites(self, task: Task) -> Sites:
        self._kind = self.app.task(str(task.data.get("kind")))
        self._values = draw_values(self._kind, self.copy.database, self.np_random)
        return {self.app.host: Upstream("127.0.0.1", self.copy.port)}

    def start_url(self, task: Task) -> str:
        return f"http://{self.app.host}{worded(self._kind.url, self._values)}"

    async def set_up(self, task: Task) -> str:
        self.copy.check_alive()
        return worded(self._kind.instruction, self._values)

    async def score(self) -> float | None:
        self.copy.check_alive()
        if self.answer is None:
            return None
        return await asyncio.to_thread(grade, self.app, self._kind, self._values, self.copy.database, self.answer)

    def hidden_state(self) -> object:
        """Return the values, and the rows that the description names, since others may hold times."""
        return [sorted(self._values.items()), state_rows(self.app, self._kind, self._values, self.copy.database)]

    def stop(self) -> None:
        super().stop()
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def copy(self) -> AppProcess:
        """This environment's copy of the application."""
        if self._copy is None:
            raise UsageError(f"{self.env_id}: the application runs only after reset()")
        return self._copy

    @property
    def values(self) -> Values:
        """Values that the seed has drawn for the task, by name."""
        return dict(self._values)

    def oracle(self) -> Message:
        if not self.app.oracle:
            raise NotImplementedError(f"the application {self.app.name!r} describes no gold policy")
        choose = function_of(self.app, self.app.oracle)
        call: ToolCall = choose(self._kind.id, self._values, self.page, self.copy.database)
        return Message("assistant", format_call(call, self.tools), (call,))
