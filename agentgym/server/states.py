"""Storage for states of snapshots on a server."""

from __future__ import annotations

import secrets
from collections import OrderedDict

from agentgym.remote.wire import NoStateError


class States:
    """States by id. The oldest are dropped when there is no more space.

    Args:
        max_bytes: most bytes of all states together.

    Example:
        >>> states = States(max_bytes=10)
        >>> first, second = states.add("12345"), states.add("123456")
        >>> states.find(second)
        '123456'
        >>> states.find(first)
        Traceback (most recent call last):
        agentgym.remote.wire.NoStateError: the server does not hold this state any more
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._by_id: OrderedDict[str, str] = OrderedDict()

    def add(self, state: str | None) -> str | None:
        """Store a state and return its id, or None if the state is None or too large."""
        if state is None or len(state) > self._max_bytes:
            return None
        identity = secrets.token_urlsafe(18)
        self._by_id[identity] = state
        self._num_bytes += len(state)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._by_id.popitem(last=False)[1])
        return identity

    def find(self, identity: object) -> str:
        """Return a state and mark it as the most recently used.

        Raises:
            NoStateError: the state was dropped or never existed.
        """
        if not isinstance(identity, str) or identity not in self._by_id:
            raise NoStateError("the server does not hold this state any more")
        self._by_id.move_to_end(identity)
        return self._by_id[identity]
