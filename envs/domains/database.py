"""A database of plain records: what many episodes share, and what one episode has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentgym.canonical import digest

Record = dict[str, Any]
"""Text, numbers, booleans and None in dictionaries and lists."""
Tables = Mapping[str, Mapping[str, Record]]
"""Records by table and id."""
Changes = Mapping[str, Mapping[str, Record]]
"""The records that were written, by table and id."""


class Database:
    """Tables of records that are read in place and copied when written.

    The tables are shared between episodes and never written to. A record that :meth:`edit` gives is new, and is not
    written to again once the tool that asked for it has returned, so :meth:`dump` needs to copy no record.

    Example:
        >>> shop = {"orders": {"#1": {"status": "pending"}, "#2": {"status": "pending"}}}
        >>> database = Database(shop)
        >>> database.edit("orders", "#1")["status"] = "cancelled"
        >>> database.changes()
        {'orders': {'#1': {'status': 'cancelled'}}}
        >>> shop["orders"]["#1"], Database(shop).hash() == database.hash()
        ({'status': 'pending'}, False)
    """

    def __init__(self, tables: Tables, written: Changes | None = None) -> None:
        self._tables = tables
        self._written: dict[str, dict[str, Record]] = {}
        self._hash: str | None = None
        self.load(written or {})

    def find(self, table: str, key: str) -> Record | None:
        """A record, not to be written to; None if there is none."""
        written = self._written.get(table, {})
        return written[key] if key in written else self._tables.get(table, {}).get(key)

    def rows(self, table: str) -> Iterator[tuple[str, Record]]:
        """Ids and records of a table, not to be written to."""
        written = self._written.get(table, {})
        for key, record in self._tables.get(table, {}).items():
            yield key, written.get(key, record)
        for key, record in written.items():
            if key not in self._tables.get(table, {}):
                yield key, record

    def edit(self, table: str, key: str) -> Record:
        """A copy of a record to write to, which takes its place; an empty one if there is none."""
        self._hash = None
        record: Record = copied(self.find(table, key) or {})
        self._written.setdefault(table, {})[key] = record
        return record

    def changes(self) -> dict[str, dict[str, Record]]:
        """The records that are not as they were, by table and id."""
        changed = {
            table: {key: record for key, record in records.items() if self._tables.get(table, {}).get(key) != record}
            for table, records in self._written.items()
        }
        return {table: records for table, records in changed.items() if records}

    def hash(self) -> str:
        """Digest of what differs from the shared tables: equal exactly if two databases over them are equal."""
        if self._hash is None:
            self._hash = digest(self.changes())
        return self._hash

    def dump(self) -> Changes:
        """Return what was written, for :meth:`load`."""
        return {table: dict(records) for table, records in self._written.items()}

    def load(self, written: Changes) -> None:
        """Take the place of what was written."""
        self._hash = None
        self._written = {table: dict(records) for table, records in written.items()}


def copied(value: object) -> Any:
    """A deep copy of plain data; ``copy.deepcopy`` takes five times as long."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value
