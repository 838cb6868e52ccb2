"""Cache slots, and the sessions that keep their keys and values in them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

MIN_SHARED_TOKENS = 16
"""Fewer common tokens are forwarded again rather than copied from another slot."""


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the cache: ``token_ids[:num_cached]`` are the tokens whose keys and values it holds."""

    index: int
    session_id: str = ""
    """Whose tokens are kept here once the request is done; empty: nobody's."""
    token_ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    is_busy: bool = False
    last_used: int = 0

    def adopt(self, token_ids: list[int], num_kept_max: int) -> int:
        """Make ``token_ids`` the slot's tokens, keep what the cache already holds of them, and return how many.

        At most ``num_kept_max`` are kept: the last token of a prompt is always computed, for its logits.
        """
        limit = min(self.num_cached, num_kept_max, len(token_ids))
        self.num_cached = _common_prefix(self.token_ids, token_ids, limit)
        self.token_ids = token_ids
        return self.num_cached

    def begins_like(self, other: Slot) -> bool:
        """Return True if both have the same first tokens: a quick test before the others are compared."""
        return self.token_ids[:MIN_SHARED_TOKENS] == other.token_ids[:MIN_SHARED_TOKENS]

    def num_shared(self, other: Slot) -> int:
        """Return how many of this slot's tokens are cached in the other one; the last token is always computed."""
        limit = min(len(self.token_ids) - 1, other.num_cached)
        return _common_prefix(self.token_ids, other.token_ids, limit)

    def gains_by(self, other: Slot) -> bool:
        """Return True if ``other``, once all its tokens are cached, spares this slot enough of them."""
        limit = min(len(self.token_ids), len(other.token_ids)) - 1
        wanted = self.num_cached + MIN_SHARED_TOKENS
        return limit >= wanted and _common_prefix(self.token_ids, other.token_ids, wanted) == wanted


class SlotTable:
    """Slots ``first_index`` to ``first_index + num_slots - 1``; idle sessions give way, least recently used first."""

    def __init__(self, num_slots: int, first_index: int):
        self._slots = [Slot(first_index + i) for i in range(num_slots)]
        self._free = [(slot.index, slot) for slot in self._slots]  # a heap: low slots first keeps busy ones adjacent
        self._by_session: dict[str, Slot] = {}
        self._clock = 0
        self.num_evictions = 0

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self._slots)

    def is_session_busy(self, session_id: str) -> bool:
        """Return True if a request of this session is running."""
        slot = self._by_session.get(session_id)
        return slot is not None and slot.is_busy

    def acquire(self, session_id: str) -> Slot | None:
        """The session's own slot, else a free one, else that of the least recently used idle session.

        None if every slot is busy. The session must not be busy; ``""`` is no session.
        """
        slot = self._by_session.get(session_id)
        if slot is None:
            slot = self._free_or_evicted()
            if slot is None:
                return None
            slot.session_id = session_id
            if session_id:
                self._by_session[session_id] = slot
        assert not slot.is_busy
        slot.is_busy = True
        return slot

    def finish(self, slot: Slot) -> None:
        """The slot's request is done; its tokens stay for the session, if it has one."""
        self._clock += 1
        slot.is_busy = False
        slot.last_used = self._clock
        if not slot.session_id:
            self._free_slot(slot)

    def release(self, session_id: str) -> None:
        """Forget a session; a slot still busy is freed when its request is done."""
        slot = self._by_session.pop(session_id, None)
        if slot is not None:
            slot.session_id = ""
            if not slot.is_busy:
                self._free_slot(slot)

    def donor(self, slot: Slot) -> Slot | None:
        """Return the slot whose cache spares this one the most tokens, None if none spares enough."""
        others = [other for other in self._slots if other is not slot and other.begins_like(slot)]
        best = max(others, key=slot.num_shared, default=None)
        return best if best is not None and slot.num_shared(best) >= slot.num_cached + MIN_SHARED_TOKENS else None

    def forget_cached(self) -> None:
        """Nothing in the cache is of use any more; sessions and busy slots stay."""
        for slot in self._slots:
            slot.num_cached = 0

    def _free_or_evicted(self) -> Slot | None:
        if self._free:
            return heapq.heappop(self._free)[1]
        idle = [slot for slot in self._slots if not slot.is_busy]
        if not idle:
            return None
        slot = min(idle, key=lambda slot: slot.last_used)
        del self._by_session[slot.session_id]
        slot.num_cached = 0
        self.num_evictions += 1
        return slot

    def _free_slot(self, slot: Slot) -> None:
        slot.token_ids, slot.num_cached = [], 0
        heapq.heappush(self._free, (slot.index, slot))


def _common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Return how many of the first ``limit`` entries are equal; both must have that many."""
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])
