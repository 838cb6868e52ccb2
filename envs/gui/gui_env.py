"""The base of environments whose agent drives a browser.

A subclass implements three methods; :meth:`set_up` and :meth:`score` are coroutines::

    class Guestbook(GuiEnv):
        def sites(self, task):                  # what the browser can reach, by host name
            return {"book.localhost": Folder(Path("site"))}

        async def set_up(self, task):           # the first page is open: what the agent is asked
            return "Sign the guest book as Ann."

        async def score(self):                  # after every turn: None to go on, a number to end with
            return 1.0 if "Ann" in await self.text() else None

Everything runs in the driver's loop (:mod:`agentgym.envs.gui.pool`), whichever loop or thread the caller is in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from agentgym.call_syntax import format_call
from agentgym.canonical import digest
from agentgym.envs.gui.actions import BrowserActions, offered_tools
from agentgym.envs.gui.browser_session import BrowserSession
from agentgym.envs.gui.determinism import ContextKind
from agentgym.envs.gui.observe import ObservationConfig, Part, fitted, marked, page_text, screen_of, tabs_line
from agentgym.envs.gui.pool import PoolConfig, driver, shared_pool
from agentgym.envs.gui.screen_actions import SCREEN
from agentgym.envs.gui.site import Sites
from agentgym.envs.gui.tab import TabDeadError
from agentgym.envs.gui.tree import CLICKABLE_ROLES, TEXT_ROLES, Tree
from agentgym.errors import EnvError, ResetNeededError, ToolError
from agentgym.tools.look import LookTools, pictures_of
from agentgym.tools.pictures import Scale, image_part
from agentgym.types import ImagePart, Message, Observation, Task, TextPart, ToolCall, ToolResult

_EMPTY = Tree("", "", ())


class GuiEnv(BrowserActions, LookTools):
    """An agent in a browser. Subclasses implement :meth:`sites`, :meth:`set_up` and :meth:`score`.

    Args:
        observe: the parts of an observation, see :class:`~agentgym.envs.gui.observe.ObservationConfig`.
        max_tokens: budget of an observation's text in tokens, estimated as four bytes each.
        actions: the sets of tools to offer, see :data:`~agentgym.envs.gui.actions.ACTION_SETS`. ``screen``
            has tools that point at the picture: ``click``, ``drag``, ``scroll``, ``type`` and others.
        picture: width and height of screenshots. ``fit`` scales them to multiples of 224, which no processor changes;
            ``page`` leaves them as large as the screen.
        coordinates: scale of points: ``pixels`` of the picture, or ``normalised``, 0 to 1000.
        viewport: width and height of the screen in CSS pixels.
        turn_ms: milliseconds of the page's own time that pass with every turn; its clock stands still otherwise.
        pool: how this process shares browsers; fields of :class:`~agentgym.envs.gui.pool.PoolConfig`, in a recipe.
        max_turns: turns after which an episode is truncated.
    """

    def __init__(  # noqa: PLR0913  (an option each)
        self,
        *,
        observe: Sequence[Part] = ("tree",),
        max_tokens: int = 3000,
        actions: Sequence[str] = ("elements", "pages", "tabs", "answer"),
        viewport: tuple[int, int] = (1024, 768),
        picture: Sequence[int] | Literal["fit", "page"] = "fit",
        coordinates: Scale = "pixels",
        turn_ms: float = 500.0,
        pool: PoolConfig | Mapping[str, Any] | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.observing = ObservationConfig(parts=tuple(observe), max_tokens=max_tokens)
        self.kind = ContextKind(viewport=(int(viewport[0]), int(viewport[1])))
        self._tools = offered_tools(type(self)._tools, actions, self.observing.parts)
        self.needs_images = not {"tree", "html"}.intersection(self.observing.parts)
        self.points = SCREEN in actions
        self.viewport = self.kind.viewport
        self.look_scale = coordinates
        self.screen, self.page_scale = screen_of(self.viewport, picture, coordinates, self.observing.has_pictures)
        self.turn_ms = float(turn_ms)
        self._pool_config = pool if isinstance(pool, PoolConfig) else PoolConfig(**pool or {})
        self._session: BrowserSession | None = None
        self._kept_page: str | None = None
        self._page: Tree = _EMPTY
        self._key = ""
        self.marks = []
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------ methods to implement

    @abstractmethod
    def sites(self, task: Task) -> Sites:
        """Return the sites that the browser can reach in an episode, by host name; all other hosts fail."""

    def start_url(self, task: Task) -> str:
        """Return the address of the first page; by default the first site's root."""
        return f"http://{self.session.network.hosts[0]}/"

    def files(self, task: Task) -> Mapping[str, bytes]:
        """Return the files that an agent may give to pages, by name; none by default (actions ``files``)."""
        return {}

    def kept_page(self, task: Task) -> str | None:
        """Return a name for the first page if :meth:`set_up` can begin an episode on it, whatever its state.

        Such a page is loaded again only if an episode has left it, stored something or opened a tab. None, the default,
        gives every episode a fresh context.
        """
        return None

    @abstractmethod
    async def set_up(self, task: Task) -> str:
        """Bring the open first page into the task's start state, and return the agent's instruction."""

    @abstractmethod
    async def score(self) -> float | None:
        """Return the outcome if the episode is over, else None. Called after every turn.

        ``self.answer`` is the agent's argument of ``done``, and None before that call; after it :meth:`score` must
        return an outcome.
        """

    def hidden_state(self) -> object:
        """Return the state that the page does not show, such as what a server has stored; part of the state key."""
        return None

    # ------------------------------------------------------------------------------------------- for subclasses

    @property
    def session(self) -> BrowserSession:
        if self._session is None:
            raise ResetNeededError(f"{self.env_id}: no browser is open before reset() or after the episode's end")
        return self._session

    @property
    def page(self) -> Tree:
        """The page at the end of the last turn."""
        return self._page

    async def text(self) -> str:
        """Return the text on the page now."""
        return Tree.of(await self.session.look(0, self.sees_all_elements)).text

    async def evaluate(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page's own world, which the page can tamper with; return its JSON
        value.
        """
        async with self.session.browser.failing(f"{self.env_id}: evaluating {expression[:80]!r}"):
            try:
                return await self.tab.evaluate(expression)
            except TabDeadError as error:
                raise EnvError(f"{self.env_id}: evaluating {expression[:80]!r}: the tab crashed: {error}") from error

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:
        return driver().call(self._start(task))

    async def astart(self, task: Task) -> Observation:
        return await driver().acall(self._start(task))

    def respond(self, action: Message) -> Observation:
        return driver().call(self._respond(action))

    async def arespond(self, action: Message) -> Observation:
        return await driver().acall(self._respond(action))

    def end_episode(self) -> None:
        if self._session is not None:
            driver().call(self._let_go())

    async def aend_episode(self) -> None:
        if self._session is not None:
            await driver().acall(self._let_go())

    def stop(self) -> None:
        self.end_episode()

    async def aclose(self) -> None:
        await self.aend_episode()
        self.close()

    async def _start(self, task: Task) -> Observation:
        await self._let_go()
        self.answer, self.wait_ms, self.marks, self.task_files = None, 0.0, [], dict(self.files(task))
        pool = await shared_pool(self._pool_config)
        self._kept_page = page = self.kept_page(task)
        kept = None if page is None else await pool.take_kept(self.kind, page)
        self._session = kept or await pool.acquire(self.kind)
        try:
            opening = self._open(task) if kept is None else self._reopen(task)
            said = await self._session.browser.unless_gone(f"{self.env_id} reset", opening)
        except BaseException:
            self._kept_page = None
            await self._let_go()
            raise
        if kept is None:
            pool.prepare(self.kind)
        return said

    async def _open(self, task: Task) -> Observation:
        """Open the first page and set up the start state."""
        session = self.session
        await session.begin(self.episode.seed, self.sites(task))
        url = self.start_url(task)
        async with session.browser.failing(f"opening {url}"):
            await self.tab.goto(url, session.browser.limits.load_s)
            if self._kept_page is not None:
                await session.keep()
        return await self._set_the_task(task)

    async def _reopen(self, task: Task) -> Observation:
        """Set up the start state on a page that is open."""
        self.session.network.open_to(self.sites(task))
        async with self.session.browser.failing("taking up a page again"):
            await self.session.rewind(self.episode.seed)
        return await self._set_the_task(task)

    async def _set_the_task(self, task: Task) -> Observation:
        instruction = await self.set_up(task)
        if self.observing.has_pictures and (self.points or "click_at" in self._tools):
            instruction = f"{instruction}\n{self.screen.hint}"
        text, images = await self._look()
        self._require_sites()
        return (Message("user", _content(f"{instruction}\n\n{text}", images)),)

    async def _respond(self, action: Message) -> Observation:
        try:
            return await self.session.browser.unless_gone(f"{self.env_id} step", self._take_turn(action))
        except BaseException:
            self._kept_page = None  # its state is unknown, so do not keep it
            raise

    async def _take_turn(self, action: Message) -> Observation:
        self.session.begin_turn()
        self.wait_ms = 0.0
        messages = list(await self._act(action))
        text, images = await self._look()
        self._require_sites()  # a lost site may look like a wrong page
        outcome = await self.score()
        self._require_sites()
        if outcome is not None:
            self.finish(outcome)
            return tuple(messages)
        last = messages[-1]
        images = [*pictures_of((last,)), *images]
        messages[-1] = Message(last.role, _content(f"{last.text}\n\n{text}", images), result=last.result)
        return tuple(messages)

    def _require_sites(self) -> None:
        """Raise the failure of a site, if one has failed."""
        if self.session.network.failure is not None:
            raise self.session.network.failure

    async def _act(self, action: Message) -> Observation:
        """Return the calls' results, in order."""
        if not action.calls:
            return (Message("user", self.no_call(action)),)
        messages = []
        for call in action.calls:
            result = await self._arun(call)
            messages.append(Message("tool", _content(result.content, result.images), result=replace(result, images=())))
        return tuple(messages)

    async def _arun(self, call: Any) -> ToolResult:
        """Run one call. If the tab dies, the agent reads that as the call's result; if the browser dies, it is an
        EnvError.
        """
        name, call_id = (call.name, call.id) if isinstance(call, ToolCall) else ("", "")
        if self.answer is not None:
            return self._refused(call, ToolError("the episode has ended; this call was not run", "episode_over"))
        box = self.acted_box(call)
        async with self.session.browser.failing(f"{self.env_id}: {name}"):
            try:
                result = await super()._arun(call)
                return result if box is None else replace(result, box=box)
            except TabDeadError as error:
                return ToolResult(f"The tab is gone: {error}.", name, call_id)

    async def _look(self) -> tuple[str, list[ImagePart]]:
        """Wait for the page to settle, and return the observation's text and pictures."""
        session = self.session
        async with session.browser.failing(f"{self.env_id}: looking at the page"):
            self._page = Tree.of(await session.look(self.turn_ms + self.wait_ms, self.sees_all_elements))
            self._key = digest([self._page.state(), session.urls, session.current, self.hidden_state(), self.answer])
            try:
                return await self._observation()
            except TabDeadError as error:
                raise EnvError(f"{self.env_id}: the tab crashed while it was looked at: {error}") from error

    async def _observation(self) -> tuple[str, list[ImagePart]]:
        texts = [*self.session.take_notes(), tabs_line(self.session.urls, self.session.current)]
        for part in self.observing.parts:
            if part == "tree":
                texts.append(self.tree_text())
            elif part == "html":
                texts.append(await self.tab.source(self.observing.max_bytes))
        images, marks = await self._pictures()
        return "\n".join(text for text in [*texts, marks] if text), images

    def tree_text(self) -> str:
        """Return the tree as an observation has it."""
        return page_text(self._page, self.observing.max_bytes)

    async def _pictures(self) -> tuple[list[ImagePart], str]:
        """Return the observation's pictures, and a line about their marks."""
        if not self.observing.has_pictures:
            return [], ""
        plain = fitted(await self.tab.screenshot(), (self.screen.width, self.screen.height))
        images, told = [], ""
        for part in self.observing.parts:
            if part == "screenshot":
                images.append(image_part(plain))
            elif part == "marks":
                png, self.marks = marked(plain, self._page, self.page_scale)
                images.append(image_part(png))
                told = "Marks: " + ", ".join(f"{n} [{id}]" for n, id in enumerate(self.marks, 1))
                if not self._takes_ids:  # ids are names of what the picture shows
                    told = f"Marks: 1 to {len(self.marks)}" if self.marks else "No marks."
        return images, told

    @property
    def _takes_ids(self) -> bool:
        return any("id" in tool.spec.parameters.get("properties", {}) for tool in self._tools.values())

    async def _let_go(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        pool = await shared_pool(self._pool_config)
        if self._kept_page is not None:
            pool.keep(session, self._kept_page)
        else:
            pool.release(session)

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        """Return a digest of the tabs' URLs, the tree (values, checks, focus; no boxes) and :meth:`hidden_state`."""
        if not self._key:
            raise ResetNeededError(f"{self.env_id}: no state before reset()")
        return self._key

    def message_of(self, call: ToolCall) -> Message:
        """Return the message with a call of the set ``elements``, or with points that do the same if the agent points.

        Raises:
            UsageError: no points do that.
        """
        calls = self.pointed(call) if self.points else [call]
        return Message("assistant", "\n".join(format_call(one, self.tools) for one in calls), tuple(calls))

    def admissible_actions(self) -> tuple[str, ...]:
        """Return clicks, choices and typing that the current page allows; typed texts are words of the page."""
        calls: list[ToolCall] = []
        for node in self._page.nodes:
            if not node.id or node.states.get("disabled"):
                continue
            if "options" in node.states:
                calls += [ToolCall("select", {"id": node.id, "options": [text]}) for text in node.states["options"]]
            elif node.role in TEXT_ROLES:
                calls += [ToolCall("fill", {"id": node.id, "text": text}) for text in ("", node.name or "a")]
            elif node.role in CLICKABLE_ROLES:
                calls.append(ToolCall("click", {"id": node.id}))
        if self.points:
            usual = [self.pointed(call) for call in calls if call.name == "click"]
            return tuple(format_call(call, self.tools) for (call,) in usual)
        return tuple(format_call(call, self.tools) for call in calls if call.name in self._tools)


def _content(text: str, images: Sequence[ImagePart]) -> str | tuple[TextPart | ImagePart, ...]:
    return (TextPart(text), *images) if images else text
