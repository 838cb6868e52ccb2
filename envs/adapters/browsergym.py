"""``agentgym/BrowserGym-v0``: a task of BrowserGym in agentgym's browser, graded by its own ``validate``."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import gymnasium

from agentgym.env.worker_thread import call_in_own_thread
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.site import Folder, Site, Sites, Upstream
from agentgym.envs.gui.sync_view import sync_view
from agentgym.errors import EnvError, UsageError, boundary, error_text, require_known
from agentgym.plugins import named_object
from agentgym.types import ImagePart, Task

_GREETING: Final = "Hi! I am your UI assistant, I can perform web tasks for you. What can I help you with?"
"""First message of BrowserGym's chat."""


class BrowserGymEnv(GuiEnv):
    """A task of BrowserGym with its ``setup``, ``validate`` and ``teardown``, and agentgym's tools and observations.

    The task uses Playwright's synchronous API on the agent's own page (:mod:`agentgym.envs.gui.sync_view`). After each
    turn, ``validate`` gives a reward, which is a part of the outcome, and may end the episode or send a message to the
    agent. ``done(answer)`` sends the agent's message to the chat and ends the episode. An episode is a success if its
    rewards sum to 1.

    An exception in the task's own code, including a Playwright time-out, is an infrastructure failure.

    Args:
        task: id of a registered task, such as ``openended`` or ``miniwob.click-test``, or ``module:Class`` or
            ``path/to/file.py:Class``.
        task_kwargs: arguments of the task, in addition to its seed.
        sites: sites that the browser can reach, by host name: a folder, ``HOST:PORT`` of a server, or a :class:`Site`.
            A task that fills its page by itself needs none.
        max_turns: turns after which an episode is truncated.
        options: arguments of :class:`~agentgym.envs.gui.gui_env.GuiEnv`. By default the viewport is the task's, and a
            task without sites offers no tools that leave the page.

    Raises:
        UsageError: there is no such task, or its arguments are wrong.
    """

    def __init__(
        self,
        *,
        task: str,
        task_kwargs: Mapping[str, Any] | None = None,
        sites: Mapping[str, str | Site] | None = None,
        max_turns: int = 30,
        **options: Any,
    ) -> None:
        found = named_object(task) if ":" in task else registered_task(task)
        self._make_task: Callable[..., Any] = partial(found, **task_kwargs or {})
        self._sites = {host: site_of(place) for host, place in (sites or {}).items()}
        self._theirs: Any = None
        self._chat: list[dict[str, Any]] = []
        self._reward, self._is_done = 0.0, False
        try:
            screen = self._make_task(seed=0).viewport
        except Exception as error:
            raise UsageError(f"the task {task} cannot be made: {error_text(error)}") from error
        actions = ("elements", "pages", "tabs", "answer") if self._sites else ("elements", "motion", "answer")
        given = {"viewport": (screen["width"], screen["height"]), "actions": actions, **options}
        super().__init__(max_turns=max_turns, **given)

    def sites(self, task: Task) -> Sites:
        return self._sites

    def start_url(self, task: Task) -> str:
        """Return an empty page, since the task opens its own."""
        return "about:blank"

    async def set_up(self, task: Task) -> str:
        self._chat, self._reward, self._is_done = [], 0.0, False
        async with self._their_code("setup"):
            self._theirs = theirs = self._make_task(seed=self.episode.seed % 2**32)
            self.session.context.set_default_timeout(theirs.timeout)
            goal, _ = await call_in_own_thread(theirs.setup, sync_view(self.tab.page))
        said = goal if isinstance(goal, str) else "\n".join(text_of(part) for part in goal or ())
        self._say("assistant", _GREETING)
        self._say("user", said)
        return said

    async def score(self) -> float | None:
        if self._is_done or self.answer is not None:
            return self._reward
        if self._reward:
            self.award(self._reward)
        return None

    def hidden_state(self) -> object:
        return [self._chat, self._is_done]

    # ---------------------------------------------------------------------------------------------------- private

    async def _take_turn(self, action: Any) -> Any:
        self._reward = 0.0
        return await super()._take_turn(action)

    async def _look(self) -> tuple[str, list[ImagePart]]:
        """Observe the page as the base class does. After a turn, the task validates the page and may send a message."""
        text, images = await super()._look()
        if not self.turn:
            return text, images
        if self.answer is not None:
            self._say("assistant", self.answer)
        async with self._their_code("validate"):
            given = [dict(message) for message in self._chat]
            found = await call_in_own_thread(self._theirs.validate, sync_view(self.tab.page), given)
            reward, done, message, _ = found
        self._reward, self._is_done = float(reward), bool(done)
        if message:
            self._say("user", message)
            text = f"{text}\n\nThe user says: {message}"
        return text, images

    async def _let_go(self) -> None:
        theirs, self._theirs = self._theirs, None
        try:
            if theirs is not None and self._session is not None and self._session.browser.is_alive:
                async with self._their_code("teardown"):
                    await call_in_own_thread(theirs.teardown)
        finally:
            await super()._let_go()

    @asynccontextmanager
    async def _their_code(self, what: str) -> AsyncIterator[None]:
        async with self.session.browser.failing(f"{self.env_id}: the task's {what}"):
            with boundary(EnvError, f"{self.env_id}: the task's {what}"):
                yield

    def _say(self, role: str, message: str) -> None:
        self._chat.append({"role": role, "timestamp": float(len(self._chat)), "message": message})


# -------------------------------------------- browserGym's registered tasks, their sites, and the texts of their goals


def registered_task(task: str) -> Callable[..., Any]:
    """Import a task family's package and return the function that makes a registered task from a seed.

    Raises:
        UsageError: there is no such task.
    """
    importlib.import_module("browsergym.core")
    family = task.partition(".")[0]
    if importlib.util.find_spec(f"browsergym.{family}") is not None:
        importlib.import_module(f"browsergym.{family}")
    known = [name.removeprefix("browsergym/") for name in gymnasium.registry if name.startswith("browsergym/")]
    require_known("task of BrowserGym", task, known)
    made: Any = gymnasium.make(f"browsergym/{task}", disable_env_checker=True).unwrapped
    found: Callable[..., Any] = made.task_entrypoint
    return found


def site_of(place: str | Site) -> Site | Upstream:
    """Return the site for a folder's path or ``HOST:PORT``. A :class:`Site` is returned unchanged.

    Raises:
        UsageError: the place is neither a folder nor ``HOST:PORT``.
    """
    if not isinstance(place, str):
        return place
    host, _, port = place.rpartition(":")
    if host and port.isdecimal():
        return Upstream(host, int(port))
    if not Path(place).is_dir():
        raise UsageError(f"sites: {place!r} is neither a folder nor HOST:PORT")
    return Folder(Path(place))


def text_of(part: Mapping[str, Any]) -> str:
    """Return a part of a goal as text.

    Raises:
        EnvError: the part is an image.
    """
    if part["type"] != "text":
        raise EnvError("the task's goal holds an image, which is not supported")
    return str(part["text"])
