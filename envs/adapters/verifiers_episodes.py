"""Episodes that verifiers runs, one after the other, with their requests for a model's reply handed out.

verifiers asks a model at an address for each reply. Here the address is our own: a request waits until the policy has
acted. Everything runs in one event loop, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import uv
import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.dialects import ChatDialect

from agentgym.envs.adapters.verifiers_messages import completion_of
from agentgym.errors import EnvError, EnvTimeoutError, UsageError, boundary
from agentgym.types import Message

_CLOSE_S: Final = 30.0
_CHAT: Final = ChatDialect()


class Episodes:
    """The episodes of one environment; all coroutines run in the same loop."""

    def __init__(self, env: vf.Env, timeout_s: float) -> None:
        self._env, self._timeout_s = env, timeout_s
        self._serving: AsyncExitStack | None = None
        self._context: vf.ModelContext | None = None
        self._requests: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = asyncio.Queue()
        self._reply: asyncio.Future[dict[str, Any]] | None = None
        self._running: asyncio.Task[vf.Episode] | None = None

    async def begin(self, task: vf.Task) -> vf.Request | vf.Episode:
        """Begin an episode, and return its first request, or the episode if it has ended without one.

        Raises:
            EnvError: verifiers cannot serve the environment.
            EnvTimeoutError: no request came in time.
        """
        await self.cancel()
        if self._serving is None:
            with boundary(EnvError, "verifiers did not start"):
                await self._serve()
        self._running = asyncio.create_task(self._env.run_episode(task, self._context))
        return await self._next()

    async def go_on(self, action: Message, turn: int) -> vf.Request | vf.Episode:
        """Reply to the open request, and return the next one, or the episode if it has ended."""
        if self._reply is None or self._reply.done():  # who asked has gone
            raise EnvError("verifiers does not wait for a reply")
        self._reply.set_result(completion_of(action, turn))
        return await self._next()

    async def cancel(self) -> None:
        """End the running episode without grading it."""
        running, self._running, self._reply = self._running, None, None
        if running is not None and not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=_CLOSE_S)
        self._requests = asyncio.Queue()

    async def close(self) -> None:
        """End the running episode and what serves it."""
        await self.cancel()
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.aclose()

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            secret = secrets.token_urlsafe(16)
            app = web.Application(client_max_size=2**30)
            app.router.add_post(f"/{secret}/chat/completions", self._answer)
            runner = web.AppRunner(app, shutdown_timeout=1.0)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            client = vf.EvalClientConfig(base_url=f"http://{host}:{port}/{secret}", api_key_var="AGENTGYM_NO_KEY")
            self._context = vf.ModelContext(model="agentgym", client=client)
            await stack.enter_async_context(self._env.serving())
            self._serving = stack.pop_all()

    async def _answer(self, request: web.Request) -> web.Response:
        """Hold a request until the policy has acted."""
        body, reply = await request.json(), asyncio.get_running_loop().create_future()
        self._requests.put_nowait((body, reply))
        completion = await reply
        if not body.get("stream"):
            return web.json_response(completion)
        return web.Response(body=b"".join(_CHAT.stream_events(completion)), content_type="text/event-stream")

    async def _next(self) -> vf.Request | vf.Episode:
        assert self._running is not None
        asked = asyncio.ensure_future(self._requests.get())
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.wait({asked, self._running}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await self.cancel()
            raise EnvTimeoutError(f"verifiers asked for no reply within {self._timeout_s:g} s") from None
        finally:
            asked.cancel()
        if asked.done() and not asked.cancelled():
            body, self._reply = asked.result()
            return _CHAT.parse_request(body)
        with boundary(EnvError, "verifiers"):
            return self._running.result()


def load(taskset: str, env: str, config: Mapping[str, Any], seat: Mapping[str, Any]) -> vf.Env:
    """Return an environment of verifiers; ``seat`` fills what neither its agents nor ``config`` say.

    Raises:
        UsageError: there is no such taskset or environment, or verifiers refuses the settings.
    """
    try:
        given = {**config, "id": env, "taskset": {**config.get("taskset", {}), "id": _importable(taskset)}}
        for name, spec in vf.env_config_type(given["taskset"]["id"], env).model_fields.items():
            if isinstance(spec.default, vf.AgentConfig):
                declared = spec.default.model_dump(exclude_unset=True)
                given[name] = {**{key: seat[key] for key in seat if key not in declared}, **given.get(name, {})}
        made = vf.load_environment(vf.resolve_env_config(given))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"verifiers cannot load {taskset!r}: {' '.join(str(error).split()):.500}") from error
    for _, spec in made.config:
        if isinstance(spec, vf.AgentConfig) and isinstance(spec.runtime, vf.SubprocessConfig):
            harness = spec.harness or vf.default_agent_harness(made.config.taskset.id)
            if vf.load_harness(harness).EXECUTES_CODE:
                raise UsageError(f"the harness {harness.id!r} runs the model's code; give the agent a runtime: docker")
    return made


def path_with_uv() -> str:
    """Return the path of programs with uv on it, by which verifiers' own programs are started."""
    return os.pathsep.join((os.path.dirname(uv.find_uv_bin()), os.environ.get("PATH", "")))


def _importable(taskset: str) -> str:
    """Return the name that a taskset is imported by; a file's folder is put on the path, also of child processes."""
    if not taskset.endswith(".py"):
        return taskset
    path = Path(taskset).resolve()
    if not path.is_file():
        raise UsageError(f"no file {taskset!r}")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (os.environ.get("PYTHONPATH"), folder) if part)
        importlib.invalidate_caches()
    return path.stem
