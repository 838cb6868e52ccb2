"""Playwright's synchronous API on top of our browsers' asynchronous objects, for code that is written against it.

Both of Playwright's APIs have the same names. A view of an object of the asynchronous one runs each call in the
driver's loop and waits for it, so its user must be in another thread. No second connection to the browser is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from agentgym.env.worker_thread import call_in_own_thread
from agentgym.envs.gui.pool import driver

_HANDLERS: Final = frozenset({"on", "once", "route", "expose_function", "expose_binding", "add_locator_handler"})
"""Methods whose callbacks Playwright awaits; callbacks of other methods are predicates, called synchronously."""
_VIEW: Final = "_agentgym_view"


class SyncView:
    """Wraps an object of Playwright's asynchronous API to behave like one of its synchronous API.

    Attributes that are not Playwright's may be set, as on any object. Not supported: ``remove_listener``, ``expect``,
    and predicates that call the browser.
    """

    def __init__(self, target: Any) -> None:
        self.__dict__["_target"] = target

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the synchronous API that has the same name."""
        import playwright.sync_api

        found = getattr(playwright.sync_api, type(self._target).__name__, SyncView)
        return found if isinstance(found, type) else SyncView

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_target"], name)
        if not inspect.ismethod(value):
            return _shown(value)

        def called(*arguments: Any, **named: Any) -> Any:
            given = [_given(one, name) for one in arguments]
            return _waited(lambda: value(*given, **{key: _given(one, name) for key, one in named.items()}))

        return called

    def __enter__(self) -> Any:
        return _waited(self._target.__aenter__)

    def __exit__(self, *error: Any) -> None:
        _waited(lambda: self._target.__aexit__(*error))

    def __repr__(self) -> str:
        return repr(self._target)


def sync_view(target: Any) -> Any:
    """Return the view of an object, always the same one."""
    found = getattr(target, _VIEW, None)
    if found is None:
        found = SyncView(target)
        setattr(target, _VIEW, found)
    return found


def _waited(start: Callable[[], Any]) -> Any:
    """Call in the driver's loop, wait for the result, and return it as the synchronous API would."""

    async def run() -> Any:
        value = start()
        return await value if inspect.isawaitable(value) else value

    return _shown(driver().call(run()))


def _shown(value: Any) -> Any:
    if inspect.isawaitable(value):
        return _waited(lambda: value)
    if isinstance(value, list | tuple):
        return type(value)(_shown(one) for one in value)
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    module = type(value).__module__
    is_an_error = isinstance(value, BaseException)
    is_theirs = module.startswith(("playwright.async_api", "playwright._impl._async_base"))
    return sync_view(value) if is_theirs and not is_an_error else value


def _given(value: Any, method: str) -> Any:
    """Convert an argument for the asynchronous API."""
    if type(value) is SyncView:
        return value.__dict__["_target"]
    if isinstance(value, list | tuple):
        return type(value)(_given(one, method) for one in value)
    if isinstance(value, dict):
        return {key: _given(one, method) for key, one in value.items()}
    if not callable(value) or isinstance(value, type):
        return value
    num = _num_positional(value)
    if method not in _HANDLERS:
        return lambda *arguments: value(*map(_shown, arguments[:num]))

    async def handle(*arguments: Any) -> Any:
        return await call_in_own_thread(value, *map(_shown, arguments[:num]))

    return handle


def _num_positional(function: Callable[..., Any]) -> int | None:
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
