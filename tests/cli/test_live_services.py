"""Worlds over a web service: little is played there that was not asked for, and it is announced."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentgym.check import check_env
from agentgym.env.live import LIVE_DEMOS, LIVE_EPISODES
from agentgym.registry import make
from agentgym.trainers.data.demos import collect_texts

Command = Callable[..., Any]

WORLD = '''
import urllib.request
from agentgym import Task, ToolEnv, register, tool

URL = "http://127.0.0.1:PORT"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

def ask(path):
    with OPENER.open(URL + path) as answer:
        return answer.read().decode()

class Depot(ToolEnv):
    """A depot that a web service keeps."""

    max_turns = 4
    LIVE

    def tasks(self, split):
        data = {"wanted": f"crate of zirconium {split}"}
        return [Task(id=f"{split}-{n}", split=split, seed=n, data=data) for n in range(400)]

    def start(self, task):
        self.places = ask("/reset")
        return f"Find the {task.data['wanted']}: {self.places}."

    @tool
    def look(self, shelf: int) -> str:
        """Look at a shelf of the depot.

        Args:
            shelf: its number.
        """
        if shelf == 3:
            self.finish(1.0)
        return ask("/shelf")

register("Depot-v0", Depot)
'''


class Service(BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012  (one list for all requests)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = b"shelves 1 to 9" if self.path == "/reset" else b"an empty shelf"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    Service.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def world(folder: Path, port: int, live: str = "pass") -> str:
    path = folder / f"depot_{abs(hash(live))}.py"
    path.write_text(WORLD.replace("PORT", str(port)).replace("LIVE", live))
    return f"{path}:Depot-v0"


@pytest.mark.parametrize("live", ["pass", "is_live = True"])
def test_a_tokenizer_reads_first_what_costs_nothing(tmp_path: Path, port: int, live: str) -> None:
    reference = world(tmp_path, port, live)
    said: list[str] = []
    services: list[str] = []
    env = make(reference)
    texts, _ = collect_texts(
        lambda: make(reference),
        env.tasks("train")[:300],
        seed=0,
        reference="Depot-v0",
        say=said.append,
        on_service=services.append,
    )
    assert Service.asked.count("/reset") == LIVE_EPISODES
    (note,) = said
    assert f"{LIVE_EPISODES} episodes in place of 300 (model.num_text_episodes)" in note
    assert services == [f"127.0.0.1:{port}" if live == "pass" else "a live service"]
    assert any("zirconium" in text for text in texts) and any("Look at a shelf" in text for text in texts)


def test_a_world_that_says_it_is_none_is_played(tmp_path: Path, port: int) -> None:
    reference = world(tmp_path, port, "is_live = False")
    said: list[str] = []
    collect_texts(lambda: make(reference), make(reference).tasks("train")[:9], seed=0, say=said.append)
    assert Service.asked.count("/reset") == 9 and not said


def test_the_recipe_announces_what_it_plays(tmp_path: Path, port: int, run: Command) -> None:
    settings = ["num_steps=1", "groups_per_step=1", "group.group_size=2", "eval.num_episodes=1", "sft.num_epochs=1"]
    done = run("train", "tiny", f"env.id={world(tmp_path, port)}", "--run-dir", str(tmp_path / "run"), *settings)
    assert done.code == 0, done.err
    told = " ".join((done.out + done.err).split())
    assert f"asks 127.0.0.1:{port}; the tokenizer reads its tools and tasks" in told
    assert f"{LIVE_DEMOS} episodes of random calls are played in place of 1,500 (sft.num_demos)" in told
    played = LIVE_EPISODES + LIVE_DEMOS + 2 + 2 * 1  # texts, demonstrations, a group, evaluations
    assert Service.asked.count("/reset") <= played + 2


def test_the_checks_of_a_service_play_less(tmp_path: Path, port: int) -> None:
    report = check_env(world(tmp_path, port))
    details = {check.name: check.detail for check in report.checks}
    assert details["episodes"].endswith(f"it asks 127.0.0.1:{port}, so each check plays 2 episodes (--episodes)")
    assert details["async path"] == "2 episodes, the same by both paths"
    assert {check.name: check.detail for check in check_env(world(tmp_path, port), num_episodes=3).checks}[
        "async path"
    ] == "3 episodes, the same by both paths"
