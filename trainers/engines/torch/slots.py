"""Cache slots, and the sessions whose keys and values are cached in them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

MIN_SHARED_TOKENS = 16
"""Smallest number of common tokens that are copied from another slot; fewer are computed again."""


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the cache, with the keys and values of ``token_ids[:num_cached]``."""

    index: int
    session_id: str = ""
    """Session whose tokens stay cached after the request; empty for none."""
    token_ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    is_busy: bool = False
    last_used: int = 0

    def adopt(self, token_ids: list[int], num_kept_max: int) -> int:
        """Set the slot's tokens, keep the cached prefix, and return its length.

        At most ``num_kept_max`` tokens are kept: the last token of a prompt is always computed, for its logits.
        """
        limit = min(self.num_cached, num_kept_max, len(token_ids))
        self.num_cached = _common_prefix(self.token_ids, token_ids, limit)
        self.token_ids = token_ids
        return self.num_cached

    def num_shared(self, other: Slot) -> int:
        """Return the number of this slot's tokens that the other slot has cached; the last token never counts."""
        limit = min(len(self.token_ids) - 1, other.num_cached)
        return _common_prefix(self.token_ids, other.token_ids, limit)

    def gains_by(self, other: Slot, num_cached: int) -> bool:
        """Return True if ``other``, with that many tokens cached, saves this slot enough computation."""
        wanted = self.num_cached + MIN_SHARED_TOKENS
        is_long_enough = len(self.token_ids) > wanted and num_cached >= wanted
        return is_long_enough and self.token_ids[:wanted] == other.token_ids[:wanted]


class SlotTable:
    """The slots ``first_index`` to ``first_index + num_slots - 1``; the least recently used idle session is evicted."""

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
        """Return the session's own slot, else a free one, else that of the least recently used idle session.

        Return None if every slot is busy. The session must not be busy; ``""`` means no session.
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
        """Mark the slot's request as done; its tokens stay cached for the session, if it has one."""
        self._clock += 1
        slot.is_busy = False
        slot.last_used = self._clock
        if not slot.session_id:
            self._free_slot(slot)

    def release(self, session_id: str) -> None:
        """Drop a session; if its slot is still busy, it is freed when the request is done."""
        slot = self._by_session.pop(session_id, None)
        if slot is not None:
            slot.session_id = ""
            if not slot.is_busy:
                self._free_slot(slot)

    def donor(self, slot: Slot) -> Slot | None:
        """Return the slot whose cache saves this one the most tokens, or None if none saves enough."""
        # few gain enough, and this test of two slices is far quicker than the length of what they share
        others = [other for other in self._slots if other is not slot and slot.gains_by(other, other.num_cached)]
        return max(others, key=slot.num_shared, default=None)

    def forget_cached(self) -> None:
        """Mark all cached tokens as invalid; sessions and busy slots stay."""
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
    """Return the number of equal leading entries, at most ``limit``; both must have that many entries."""
    low, high = 0, limit
    while low < high:  # slices are compared in C
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
