"""Environments whose actions are calls of their tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentgym.call_syntax import parse_calls
from agentgym.env.env import Env
from agentgym.env.time_limit import limit_around, time_limit
from agentgym.env.worker_thread import call_in_own_thread, run_coroutine
from agentgym.errors import ToolError, contained_exit
from agentgym.tool import Tool, error_result, result_of, tools_of, unknown_tool
from agentgym.types import Call, MalformedCall, Message, Observation, TextPart, ToolCall, ToolResult, ToolSpec


class ToolEnv(Env):
    """An environment whose actions are calls of its ``@tool`` methods.

    Example:
        >>> from agentgym.tool import tool
        >>> class Guess(ToolEnv):
        ...     max_turns = 8
        ...     def start(self, task):
        ...         self.secret = int(self.np_random.integers(1, 11))
        ...         return "Guess my number between 1 and 10."
        ...     @tool
        ...     def guess(self, number: int) -> str:
        ...         '''Guess the number.'''
        ...         if number == self.secret:
        ...             self.finish(1.0)
        ...         return "Correct." if number == self.secret else "Wrong."
        >>> env = Guess()
        >>> observation, info = env.reset(seed=1)
        >>> env.step("guess: 3")[0][0].text
        'Wrong.'
    """

    _tools: Mapping[str, Tool] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls._tools = tools_of(cls)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def parse_action(self, text: str) -> Message:
        return Message("assistant", text, parse_calls(text, self.tools))

    def respond(self, action: Message) -> str | Observation:
        """Run all calls of the turn in order. A malformed call does not stop the others."""
        if any(tool.is_async for tool in self._tools.values()):
            return run_coroutine(self.arespond(action))
        return self._said(action, [self._run(call) for call in action.calls])

    async def arespond(self, action: Message) -> str | Observation:
        """Run all calls of the turn. Consecutive parallel-safe calls run at the same time."""
        results: list[ToolResult] = []
        for stage in self._stages(action.calls):
            running = [asyncio.ensure_future(self._arun(call)) for call in stage]
            try:
                results += await asyncio.gather(*running)
            finally:
                for call_task in running:  # if a call hangs or crashes, cancel the calls beside it
                    call_task.cancel()
        return self._said(action, results)

    def no_call(self, action: Message) -> str:
        """Return the answer to a turn without a call, which counts as invalid."""
        self.refuse()
        return f"Call one of the tools: {', '.join(self._tools)}."

    def _said(self, action: Message, results: Sequence[ToolResult]) -> str | Observation:
        if not action.calls:
            return (Message("user", self.no_call(action)),)
        return tuple(_tool_message(result) for result in results)

    def _stages(self, calls: Sequence[Call]) -> list[list[Call]]:
        stages: list[list[Call]] = []
        was_parallel = False
        for call in calls:
            found = self._tools.get(call.name) if isinstance(call, ToolCall) else None
            is_parallel = found is not None and found.is_parallel_safe
            if not (is_parallel and was_parallel):
                stages.append([])
            stages[-1].append(call)
            was_parallel = is_parallel
        return stages

    def _runs_inline(self, tool: Tool) -> bool:
        """Return True for a tool that blocks the event loop while it runs."""
        return not (tool.is_async or self.is_blocking or tool.timeout_s is not None)

    def _checked(self, call: Call) -> tuple[Tool, ToolCall, dict[str, object]]:
        if isinstance(call, MalformedCall):
            raise ToolError(f"could not read the call {call.text!r}: {call.reason}", "malformed_call")
        if self.episode.is_over:
            raise ToolError("the episode has ended; this call was not run", "episode_over")
        found = self._tools.get(call.name)
        if found is None:
            raise unknown_tool(call.name, list(self._tools))
        return found, call, found.arguments(call)

    def _run(self, call: Call) -> ToolResult:
        try:
            found, checked, arguments = self._checked(call)
            with contained_exit(), time_limit(found.timeout_s, f"{self.env_id} {found.name}"):
                return result_of(checked, found.call(self, arguments))
        except ToolError as error:
            return self._refused(call, error)

    async def _arun(self, call: Call) -> ToolResult:
        try:
            found, checked, arguments = self._checked(call)
            if self._runs_inline(found):
                with contained_exit(), limit_around():
                    return result_of(checked, found.call(self, arguments))
            if found.is_async:
                work = found.call(self, arguments)
            else:
                run = call_in_own_thread if found.is_parallel_safe else self._in_thread
                work = run(lambda: found.call(self, arguments))
            async with asyncio.timeout(found.timeout_s):
                with contained_exit():
                    return result_of(checked, await work)
        except ToolError as error:
            return self._refused(call, error)

    def _refused(self, call: Call, error: ToolError) -> ToolResult:
        self.refuse()
        return error_result(error, *((call.name, call.id) if isinstance(call, ToolCall) else ()))


def _tool_message(result: ToolResult) -> Message:
    if not result.images:
        return Message("tool", result.content, result=result)
    text = (TextPart(result.content),) if result.content else ()
    return Message("tool", (*text, *result.images), result=replace(result, images=()))
