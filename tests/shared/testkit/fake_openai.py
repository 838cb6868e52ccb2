"""A fake OpenAI server (chat completions) in this process, whose answers are a function of the request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from testkit.local_servers import QuietServer

Reply = Any
"""The body of an answer, a status, or a pair of both; None: no answer until the server is closed."""
Play = Callable[[dict[str, Any]], Reply]
"""A function that answers a request."""


class FakeOpenAI:
    """A server that answers with ``play(request)`` and records the requests.

    The client's own requests for one token (no tools), which find out if the endpoint knows the model and shows it the
    tools, are answered but not recorded.
    """

    def __init__(self, play: Play) -> None:
        self.play = play
        self.num_plain_tokens = 1
        """Number of prompt tokens that the server reports without tools."""
        self.num_plain_requests = 0
        self.models: list[str] | None = ["only"]
        self.roots: dict[str, str] = {}
        """Folders of the models, as vLLM names them."""
        self.plain_reply: tuple[int, Any] | None = None
        """Answer to the client's own requests for one token."""
        """Names that the server lists; None if it lists none, as some proxies do."""
        self.headers: dict[str, str] = {}
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.num_running = self.most_running = 0
        self._is_let_go, self._lock = threading.Event(), threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listed = outer.models
                self._send((404, "") if listed is None else (200, {"data": [outer.card_of(name) for name in listed]}))

            def do_POST(self) -> None:
                try:
                    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                except ValueError:  # the client went away
                    return
                if "tools" not in body and 1 in {body.get("max_tokens"), body.get("max_completion_tokens")}:
                    outer.num_plain_requests += 1
                    self._send(
                        outer.plain_reply
                        or (200, completion("?", prompt_tokens=outer.num_plain_tokens, completion_tokens=1))
                    )
                    return
                with outer._lock:
                    outer.requests.append(body)
                    outer.keys.append(self.headers.get("Authorization"))
                    outer.num_running += 1
                    outer.most_running = max(outer.most_running, outer.num_running)
                reply = outer.play(body)
                with outer._lock:
                    outer.num_running -= 1
                if reply is None:
                    outer._is_let_go.wait(30)
                    return
                self._send(
                    reply if isinstance(reply, tuple) else (reply, "") if isinstance(reply, int) else (200, reply)
                )

            def _send(self, reply: tuple[int, Any]) -> None:
                status, body = reply
                self.send_response(status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def card_of(self, name: str) -> dict[str, str]:
        return {"id": name, **({"root": self.roots[name]} if name in self.roots else {})}

    def close(self) -> None:
        """Stop the server; a second call does nothing."""
        self._is_let_go.set()
        self._http.shutdown()
        self._http.server_close()


def completion(text: str | None = None, *calls: tuple[str, str], finish: str = "stop", **usage: int) -> dict[str, Any]:
    """Return an answer with ``text`` and tool calls, each a name and its arguments as a string."""
    listed = [
        {"id": f"id-{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, "tool_calls": listed or None}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage or None}
