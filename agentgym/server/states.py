"""States of snapshots that a server keeps for its clients."""

from __future__ import annotations

import secrets
from collections import OrderedDict

from agentgym.remote.wire import NoStateError


class States:
    """States by id, the oldest dropped when there is no more room.

    Args:
        max_bytes: bytes of all states together.

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
        """Keep a state and return its id; None for None, and for one that is larger than all the room."""
        if state is None or len(state) > self._max_bytes:
            return None
        identity = secrets.token_urlsafe(18)
        self._by_id[identity] = state
        self._num_bytes += len(state)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._by_id.popitem(last=False)[1])
        return identity

    def find(self, identity: object) -> str:
        """Return a state, which is then the last to be dropped.

        Raises:
            NoStateError: it was dropped, or never was.
        """
        if not isinstance(identity, str) or identity not in self._by_id:
            raise NoStateError("the server does not hold this state any more")
        self._by_id.move_to_end(identity)
        return self._by_id[identity]
