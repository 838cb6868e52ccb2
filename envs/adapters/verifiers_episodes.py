"""Episodes that verifiers runs one after the other, whose requests for a model's reply are passed to the policy.

verifiers sends a request to a model's address for each reply. Here the address is a local server, and a request waits
until the policy has acted. Everything runs in one event loop in a separate thread.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from typing import Any, Final

import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.dialects import ChatDialect

from agentgym.envs.adapters.verifiers_messages import completion_of
from agentgym.errors import EnvError, EnvTimeoutError, boundary
from agentgym.types import Message

_CLOSE_S: Final = 30.0
_CHAT: Final = ChatDialect()


class Episodes:
    """The episodes of one environment, whose coroutines all run in the same loop."""

    def __init__(self, env: vf.Env, timeout_s: float) -> None:
        self._env, self._timeout_s = env, timeout_s
        self._serving: AsyncExitStack | None = None
        self._context: vf.ModelContext | None = None
        self._requests: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = asyncio.Queue()
        self._open: list[asyncio.Future[dict[str, Any]]] = []
        """Futures of the replies that the episode has requested."""
        self._reply: asyncio.Future[dict[str, Any]] | None = None
        self._running: asyncio.Task[vf.Episode] | None = None

    async def begin(self, task: vf.Task) -> vf.Request | vf.Episode:
        """Begin an episode. Return its first request, or the episode if it ended without one.

        Raises:
            EnvError: verifiers cannot serve the environment.
            EnvTimeoutError: no request arrived in time.
        """
        await self.cancel()
        if self._serving is None:
            with boundary(EnvError, "verifiers did not start"):
                await self._serve()
        self._running = asyncio.create_task(self._env.run_episode(task, self._context))
        return await self._next()

    async def go_on(self, action: Message, turn: int) -> vf.Request | vf.Episode:
        """Reply to the open request. Return the next one, or the episode if it has ended."""
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
        for reply in self._open:  # who asked has gone
            reply.cancel()
        self._open, self._requests = [], asyncio.Queue()

    async def close(self) -> None:
        """End the running episode and its server."""
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
        """Answer a request when the policy has acted."""
        body, reply = await request.json(), asyncio.get_running_loop().create_future()
        self._open.append(reply)
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
