"""A guest book by the standard library: ``app.py init FOLDER`` makes its data, ``app.py serve FOLDER PORT`` serves."""

from __future__ import annotations

import html
import sqlite3
import sys
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

_HOST = "guests.localhost"
"""The name in app.toml."""
_GUESTS = ("Farid", "Gita", "Hugo", "Ines", "Jonas", "Kira", "Leo", "Mina", "Nils", "Olga", "Paul", "Rosa")
_TOWNS = ("Oslo", "Pune", "Quito", "Riga")
_PAGE = """<!doctype html><html lang="en"><title>{title}</title>
<style>body {{ font: 16px sans-serif; max-width: 720px; margin: 20px auto }} td {{ padding: 3px 14px 3px 0 }}
label {{ display: block; margin: 6px 0 }} form {{ margin: 0 }}</style><h1>{title}</h1>{body}</html>"""
_FORM = """<h2>Sign the book</h2><form method="post" action="/sign"><label>Name <input name="name"></label>
<label>Town <input name="town"></label><label>Message <input name="message" size="40"></label>
<button>Sign</button></form>"""


def init(folder: Path) -> None:
    """Make the database with twelve guests."""
    with closing(sqlite3.connect(folder / "guests.sqlite")) as book, book:
        book.execute("create table entries (id integer primary key, name text, town text, message text)")
        book.execute("create table removed (id integer primary key, town text)")
        book.executemany(
            "insert into entries values (?, ?, ?, ?)",
            [(n + 1, name, _TOWNS[n * 7 % 4], f"Room {n + 1} is fine.") for n, name in enumerate(_GUESTS)],
        )


class Handler(BaseHTTPRequestHandler):
    """Answers one request; the database is opened for each, so that it may be replaced between them."""

    database = Path()

    def do_GET(self) -> None:
        """Answer with the list of entries, the thank-you page or the health check."""
        if not self._is_own():
            self._send("Forbidden", "", 403)
        elif self.path == "/health":
            self._send("OK", "")
        elif self.path == "/thanks":
            self._send("Thank you", '<p>Your entry is in the book.</p><p><a href="/">Back</a></p>')
        elif self.path == "/":
            with closing(sqlite3.connect(self.database)) as book:
                rows = book.execute("select id, name, town, message from entries order by id").fetchall()
            self._send("Guest book", "<table>" + "".join(_row(*row) for row in rows) + "</table>" + _FORM)
        else:
            self._send("Not found", "", 404)

    def do_POST(self) -> None:
        """Store the posted entry and redirect to a page."""
        if not self._is_own():
            self._send("Forbidden", "", 403)
            return
        posted = parse_qs(self.rfile.read(int(self.headers.get("content-length", 0))).decode(), keep_blank_values=True)
        given = {name: values[-1] for name, values in posted.items()}
        with closing(sqlite3.connect(self.database)) as book, book:
            if self.path == "/sign":
                entry = [given.get(name, "") for name in ("name", "town", "message")]
                book.execute("insert into entries (name, town, message) values (?, ?, ?)", entry)
            elif self.path == "/remove":
                book.execute(
                    "insert or replace into removed select id, town from entries where id = ?", [given.get("id")]
                )
                book.execute("delete from entries where id = ?", [given.get("id")])
        self.send_response(303)
        self.send_header("location", "/thanks" if self.path == "/sign" else "/")
        self.send_header("content-length", "0")
        self.end_headers()

    def _is_own(self) -> bool:
        """Return False for requests of other sites' pages, in the browser of the person who runs this."""
        host, origin = self.headers.get("host"), self.headers.get("origin")
        port = self.connection.getsockname()[1]
        return host in (_HOST, f"127.0.0.1:{port}") and origin in (None, f"http://{host}")

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line."""

    def _send(self, title: str, body: str, status: int = 200) -> None:
        page = _PAGE.format(title=title, body=body).encode()
        self.send_response(status)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


def _row(number: int, *cells: str) -> str:
    told = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    form = f'<form method="post" action="/remove"><input type="hidden" name="id" value="{number}">'
    return f"<tr>{told}<td>{form}<button>Remove</button></form></td></tr>"


def main(arguments: list[str]) -> None:
    """Serve the guest book as the command line asks."""
    if arguments[0] == "init":
        init(Path(arguments[1]))
        return
    Handler.database = Path(arguments[1]) / "guests.sqlite"
    ThreadingHTTPServer(("127.0.0.1", int(arguments[2])), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
