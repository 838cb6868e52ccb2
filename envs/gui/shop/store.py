"""The shop's database: sessions, carts and orders, in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

_SCHEMA = """
create table cart_lines (session text, line integer, asin text, options text, primary key (session, line));
create table orders (session text primary key);
create table order_lines (session text references orders, line integer, asin text, options text,
    primary key (session, line));
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One product in a cart or an order, with the chosen value of each of its options."""

    number: int
    asin: str
    options: Mapping[str, str]


class ShopStore:
    """Carts and orders by session; used by the server and by environments, from their threads.

    Example:
        >>> store = ShopStore()
        >>> store.add("ann", "B01", {"color": "red"})
        >>> store.add("bob", "B02", {})
        >>> store.place_order("ann")
        >>> store.cart("ann"), store.order("ann"), store.order("bob")
        ((), (Line(number=1, asin='B01', options={'color': 'red'}),), ())
    """

    def __init__(self) -> None:
        # in memory: it lives as long as the process that serves it, and no episode outlives that
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.executescript(_SCHEMA)
        self._lock = Lock()

    def cart(self, session: str) -> tuple[Line, ...]:
        """What is in a session's cart."""
        return self._lines("cart_lines", session)

    def order(self, session: str) -> tuple[Line, ...]:
        """What a session has ordered; nothing before it has, and no more than once."""
        return self._lines("order_lines", session)

    def add(self, session: str, asin: str, options: Mapping[str, str]) -> None:
        """Put a product into the cart; lines are numbered within a session, the same in every run."""
        self._do(
            "insert into cart_lines select ?1, coalesce(max(line), 0) + 1, ?2, ?3 from cart_lines where session = ?1",
            (session, asin, json.dumps(dict(options), sort_keys=True)),
        )

    def remove(self, session: str, line: int) -> None:
        """Take a line out of the cart, if it is there."""
        self._do("delete from cart_lines where session = ? and line = ?", (session, line))

    def place_order(self, session: str) -> None:
        """Order what is in the cart, and empty it."""
        with self._lock, self._database:
            self._database.execute("insert into orders values (?)", (session,))
            self._database.execute("insert into order_lines select * from cart_lines where session = ?", (session,))
            self._database.execute("delete from cart_lines where session = ?", (session,))

    def forget(self, session: str) -> None:
        """Drop all that belongs to a session."""
        for table in ("cart_lines", "order_lines", "orders"):
            self._do(f"delete from {table} where session = ?", (session,))

    def _lines(self, table: str, session: str) -> tuple[Line, ...]:
        asked = f"select line, asin, options from {table} where session = ? order by line"
        with self._lock:
            rows = self._database.execute(asked, (session,)).fetchall()
        return tuple(Line(number, asin, json.loads(options)) for number, asin, options in rows)

    def _do(self, statement: str, values: tuple[Any, ...]) -> None:
        with self._lock, self._database:
            self._database.execute(statement, values)
