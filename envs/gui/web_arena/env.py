"""``agentgym/WebArena-v0``: WebArena's tasks in a browser, on self-hosted sites."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from agentgym.call_syntax import format_call
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.site import Sites, Upstream
from agentgym.envs.gui.tab import PageScriptError
from agentgym.envs.gui.web_arena.configs import (
    SITES,
    HtmlCheck,
    WebArenaTask,
    is_function,
    member_of,
    post_url,
    read_webarena,
)
from agentgym.envs.gui.web_arena.rules import has_contents, is_right_answer, is_right_url
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import EnvError, EnvTimeoutError, MissingDataError, UsageError, require_known
from agentgym.types import Message, Observation, Task, ToolCall

INSTRUCTION: Final = "When it is done, or cannot be done, say done with the answer, if one is asked for."
_LOAD_MS: Final = 3_000.0  # of the page's own time after a check has opened it, as WebArena waits
_RESET_S: Final = 900.0
_PORTS: Final = {"http": 80}


_LOCK: Final = threading.Lock()
_IN_USE: Final[weakref.WeakValueDictionary[tuple[str, ...], WebArenaEnv]] = weakref.WeakValueDictionary()
"""The environment of this process whose episode changes the sites, by their addresses."""


class WebArenaEnv(GuiEnv):
    """Do a task of WebArena on self-hosted sites, and say ``done`` with the answer; WebArena's rules grade it.

    Answers, addresses and contents of pages are compared as WebArena compares them. Tasks that a language model grades,
    that the site's own API grades, or whose site is not given are left out: :attr:`left_out` says why.

    Args:
        tasks_file: WebArena's ``config_files/test.raw.json``, or a folder with ``0.json``, ``1.json`` and so on.
        addresses: addresses of the sites, by WebArena's names: ``{"shopping": "http://127.0.0.1:7770"}``; or a JSON
            file with ``addresses`` and maybe ``reset_command``. Pages have these addresses, so the applications must be
            configured with the same ones.
        auth_dir: folder with the files that WebArena's ``auto_login.py`` writes, such as ``shopping_state.json``.
        reset_command: resets all sites before each episode; only one episode then runs at a time. Without it, changes
            of an episode remain for all others.
        max_turns: turns after which an episode is truncated; WebArena's 30.
        options: those of :class:`~agentgym.envs.gui.gui_env.GuiEnv`.

    Raises:
        UsageError: there is no such file, no task can be played, or a file of ``auth_dir`` is missing.
        CorruptDataError: a task is not in the format.
    """

    webarena = SinceReset[WebArenaTask]()
    """The current episode's task."""

    def __init__(
        self,
        *,
        tasks_file: str | Path,
        addresses: Mapping[str, str] | str | Path,
        auth_dir: str | Path | None = None,
        reset_command: Sequence[str] = (),
        max_turns: int = 30,
        **options: Any,
    ) -> None:
        if not isinstance(addresses, Mapping):
            addresses, own_command = _read_hosting(Path(addresses).expanduser())
            reset_command = reset_command or own_command
        for name, address in addresses.items():
            require_known("site of WebArena", name, SITES)
            if urlsplit(address).scheme not in _PORTS or not urlsplit(address).hostname:
                raise UsageError(f"addresses: {name} is at an address such as http://127.0.0.1:7770, got {address!r}")
        self._addresses = {name: address.rstrip("/") for name, address in addresses.items()}
        self._reset_command = tuple(reset_command)
        self._owned = tuple(sorted(self._addresses.values()))
        self._read = read_webarena(tasks_file, self._addresses)
        self._states = {name: self._state(auth_dir, name) for name in self._state_names()}
        super().__init__(max_turns=max_turns, **options)

    @property
    def left_out(self) -> Mapping[str, str]:
        """Reasons why tasks of the file cannot be played here, by id."""
        return self._read.left_out

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:
        self._take_sites()
        self._reset_sites()
        return super().start(task)

    async def astart(self, task: Task) -> Observation:
        self._take_sites()
        await asyncio.to_thread(self._reset_sites)
        return await super().astart(task)

    def end_episode(self) -> None:
        self._leave_sites()
        super().end_episode()

    async def aend_episode(self) -> None:
        self._leave_sites()
        await super().aend_episode()

    def stop(self) -> None:
        self._leave_sites()
        super().stop()

    def sites(self, task: Task) -> Sites:
        """Return all sites: a task's agent may look something up on another."""
        name = str(task.data.get("task"))
        if name not in self._read.tasks:
            why = self.left_out.get(name, "the file has no such task")
            raise UsageError(f"task {name!r} cannot be played: {why}")
        self.webarena = self._read.tasks[name]
        if task.data.get("digest", self.webarena.digest) != self.webarena.digest:
            raise UsageError(f"task {name!r} was another when it was made; use that version of WebArena's file")
        found: dict[str, Upstream] = {}
        for address in self._addresses.values():
            split = urlsplit(address)
            port = split.port or _PORTS[split.scheme]
            host = str(split.hostname)
            found[host if port == _PORTS["http"] else f"{host}:{port}"] = Upstream(host, port)
        return dict(found)

    def start_url(self, task: Task) -> str:
        return self.webarena.start_urls[0]

    async def _open(self, task: Task) -> Observation:
        name = (
            self._read.tasks[str(task.data["task"])].storage_state
            if str(task.data.get("task")) in self._read.tasks
            else ""
        )
        if name:
            await self._log_in(self._states[name])
        return await super()._open(task)

    async def set_up(self, task: Task) -> str:
        session = self.session
        for url in self.webarena.start_urls[1:]:
            async with session.browser.failing(f"opening {url}"):
                await session.new_tab()
                session.current = len(session.tabs) - 1
                await self.tab.goto(url, session.browser.limits.load_s)
        session.current = 0
        return f"{self.webarena.intent}\n{INSTRUCTION}"

    async def score(self) -> float | None:
        if self.answer is None:
            return None
        task = self.webarena
        if task.grades_answer and not is_right_answer(self.answer, task.exact_answer, task.answer_parts):
            return 0.0
        if task.urls and not is_right_url(self.tab.page.url, task.urls):
            return 0.0
        for check in task.checks:
            if not has_contents(await self._found(check), check.exact, check.parts):
                return 0.0
        return 1.0

    async def _found(self, check: HtmlCheck) -> str:
        """Return the result of a check's locator; "" if it fails, for instance on a page of another kind."""
        session = self.session
        url = post_url(check.url, self.tab.page.url) if is_function(check.url) else check.url
        async with session.browser.failing(f"grading: {url}"):
            if url != "last":
                await self.tab.goto(url, session.browser.limits.load_s)
                tab = self.tab
                await session.look(_LOAD_MS, self.sees_all_elements)
                if tab.is_dead:  # an empty one is in its place
                    raise EnvError(f"{self.env_id}: the tab crashed while {url} was opened to grade the work")
                self._require_sites()
            for action in check.prepare:
                await self._value_of(action)
            if not check.locator:
                return await self._value_of("document.documentElement.outerHTML")
            return await self._value_of(member_of(check.locator) if is_function(check.locator) else check.locator)

    async def _value_of(self, expression: str) -> str:
        try:
            return str(await self.evaluate(expression))
        except PageScriptError:  # as on a page of another kind
            return ""

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def task_type(self) -> str:
        """The sites that the task is about."""
        return ", ".join(self.webarena.sites)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the file's tasks, which are all for testing."""
        require_known("split of WebArena", split, ("test",))
        return [
            Task(id=one.id, split=split, seed=0, data={"task": one.id, "digest": one.digest})
            for one in self._read.tasks.values()
        ]

    def oracle(self) -> Message:
        """Go to the right address and give the right answer; tasks graded by a page's contents have no gold policy."""
        task = self.webarena
        if task.checks:
            raise UsageError(f"{self.env_id}: task {task.id} is graded by the contents of pages and has no gold policy")
        if task.urls and not is_right_url(self.session.tab.page.url, task.urls):
            call = ToolCall("goto", {"url": task.urls[0]}, "0")
        else:
            answer = ", ".join(task.answer_parts) if task.exact_answer is None else task.exact_answer
            call = ToolCall("done", {"answer": answer}, "0")
        return Message("assistant", format_call(call, self.tools), (call,))

    # --------------------------------------------------------------------------------------------------- private

    def _state_names(self) -> set[str]:
        return {task.storage_state for task in self._read.tasks.values() if task.storage_state}

    def _state(self, auth_dir: str | Path | None, name: str) -> Mapping[str, Any]:
        path = Path(auth_dir, name).expanduser() if auth_dir is not None else None
        if path is None or not path.is_file():
            where = "auth_dir is missing" if path is None else f"there is no file {path}"
            raise UsageError(
                f"{where}: tasks need the login in {name}, which WebArena's browser_env/auto_login.py writes"
            )
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            cookies = state["cookies"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} holds no state of a browser, with cookies: {error}") from None
        return {"cookies": cookies, "origins": state.get("origins", [])}

    async def _log_in(self, state: Mapping[str, Any]) -> None:
        """Give the browser's context cookies, and what pages have stored."""
        context = self.session.context
        async with self.session.browser.failing("logging in"):
            await context.add_cookies(list(state["cookies"]))
            for origin in state["origins"]:
                kept = {one["name"]: one["value"] for one in origin.get("localStorage", [])}
                await context.add_init_script(
                    f"if (location.origin === {json.dumps(origin['origin'])})"
                    f" for (const [k, v] of Object.entries({json.dumps(kept)})) localStorage[k] ??= v"
                )

    def _take_sites(self) -> None:
        """Reserve the sites for an episode that changes them; only one may do so at a time."""
        if not self._reset_command:
            return
        with _LOCK:
            owner = _IN_USE.setdefault(self._owned, self)
        if owner is not self:
            raise UsageError(
                f"{self.env_id}: another episode is on the same sites, which reset_command would change under it; "
                "play one at a time (--num-envs 1), or give each environment sites of its own"
            )

    def _leave_sites(self) -> None:
        with _LOCK:
            if _IN_USE.get(self._owned) is self:
                del _IN_USE[self._owned]

    def _reset_sites(self) -> None:
        if not self._reset_command:
            return
        try:
            done = subprocess.run(self._reset_command, capture_output=True, text=True, timeout=_RESET_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise EnvTimeoutError(f"reset_command took over {_RESET_S:g} s") from error
        except OSError as error:
            raise EnvError(f"reset_command {self._reset_command[0]!r} cannot be run: {error}") from error
        if done.returncode:
            raise EnvError(f"reset_command ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")


def _read_hosting(path: Path) -> tuple[Mapping[str, str], Sequence[str]]:
    """Return addresses and the command that resets the sites, from a file.

    Raises:
        UsageError: there is no such file, or it holds no addresses.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        addresses = {str(name): str(address) for name, address in held["addresses"].items()}
        return addresses, tuple(map(str, held.get("reset_command", ())))
    except OSError as error:
        raise MissingDataError(f"addresses: {path} cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"addresses: {path} is no JSON file with addresses by site: {error}") from None
