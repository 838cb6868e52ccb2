"""A folder in AppWorld's layout, and an interpreter whose modules act for uvicorn and AppWorld."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# It acts for the interpreter: `forks.py` runs in it, with modules that act for uvicorn and AppWorld.
SCRIPTED = """#!PYTHON
import json, os, runpy, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

def saved(name):
    return Path("experiments", "outputs", "agentgym", "tasks", name, "dbs", "said.json")

def evaluate_task(name, experiment_name):
    assert experiment_name == "agentgym"
    said = json.loads(saved(name).read_text())
    assert Path("data", "tasks", name, "ground_truth", "metadata.json").is_file()
    if "spoil" in said:
        sys.exit("the tests are broken")
    if "crash" in said:
        os._exit(9)
    wanted = ["one", "two", "three"]
    tests = {"passes": [{"requirement": w} for w in wanted if w in said],
             "failures": [{"requirement": w} for w in wanted if w not in said], "num_tests": 3}
    return SimpleNamespace(to_dict=lambda: {} if "odd" in said else tests)

class Handler(BaseHTTPRequestHandler):
    said, task = [], ""

    def do_GET(self):
        self.answer({"message": "here"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        operation, code = self.path[1:], asked.get("code")
        if operation == "initialize":
            Handler.said, Handler.task = [], asked["task_id"]
            task = json.loads(Path("data", "tasks", asked["task_id"], "specs.json").read_text())
            assert not Path("data", "tasks", asked["task_id"], "ground_truth").exists()
            assert os.environ["APPWORLD_ROOT"] == os.getcwd()
            keys = ("task_id", "instruction", "supervisor", "datetime")
            return self.answer({"output": {"task_id": asked["task_id"], **task}})
        if operation == "task_completed":
            return self.answer({"output": "done" in Handler.said})
        if operation == "evaluate":
            return self.answer({"output": {"passes": [{"requirement": "one"}], "failures": [], "num_tests": 1}})
        if code == "die":
            print("a last word", flush=True)
            os._exit(3)
        if code == "hang":
            time.sleep(60)
        if code == "pids":
            code = f"{os.getpid()} {os.getppid()}"
        Handler.said += code.split()
        path = saved(Handler.task)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(Handler.said))
        if code == "fail":
            return self.answer("Internal Server Error", 500)
        self.answer("junk" if code == "junk" else {"output": "Execution failed. " + code if code == "1/0" else code})

    def answer(self, value, status=200):
        body = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

class Server:
    def __init__(self, config):
        assert type(config["app"]).__name__ == "WebGuard" and config["log_level"] == "warning"

    def run(self, sockets):
        server = HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        (server.socket,) = sockets
        server.serve_forever()

def imported(name):
    with open(os.environ["HOME"] + "/imported.txt", "a") as out:
        out.write(name + " ")

def module(name, **values):
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(values)

module("uvicorn", Config=lambda app, log_level: {"app": app, "log_level": log_level}, Server=Server)
for name in ("appworld", "appworld.serve", "appworld.common"):
    module(name)
module("appworld.serve.environment", app="the app")
module("appworld.evaluator", evaluate_task=evaluate_task)
module("appworld.apps", get_all_apps=lambda: ["venmo"])
module("appworld.common.utils", import_apis_module=imported, import_models_module=imported)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PERSON = {"first_name": "Ada", "last_name": "Marsh", "email": "ada@example.com", "phone_number": "5550001"}


def write_appworld(root: Path, solution: str = "def solution(apis, requester): ...") -> Path:
    """Write two tasks to train on and one of each test set; return the data's folder."""
    folder = root / "data"
    for name in ("base_dbs", "api_docs", "datasets"):
        (folder / name).mkdir(parents=True)
    lists = {"train": ["aaa_1", "aaa_2"], "dev": ["bbb_1"], "test_normal": ["ccc_1"], "test_challenge": ["ddd_1"]}
    for dataset, names in lists.items():
        (folder / "datasets" / f"{dataset}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            truth = folder / "tasks" / name / "ground_truth"
            truth.mkdir(parents=True)
            (folder / "tasks" / name / "dbs").mkdir()
            specs = {"instruction": f"Do {name}.", "supervisor": PERSON, "datetime": "2023-05-18T12:00:00"}
            (folder / "tasks" / name / "specs.json").write_text(json.dumps(specs))
            (truth / "metadata.json").write_text('{"difficulty": 2}')
            if dataset in ("train", "dev"):
                (truth / "compiled_solution.py").write_text(solution)
    return folder


def write_python(folder: Path) -> str:
    """Write the interpreter, and return its path."""
    path = folder / "python"
    path.write_text(SCRIPTED.replace("PYTHON", sys.executable, 1))
    path.chmod(0o755)
    return str(path)
