"""``agentgym/AppWorld-v0``: AppWorld's tasks, solved with Python code in its own server, graded by its own tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical, packaged
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.appworld.data import AppWorldData
from agentgym.envs.appworld.server import EXPERIMENT, OwnServer, RemoteServer, Server, appworld_python
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import EnvError, UsageError, require_known
from agentgym.tool import tool
from agentgym.types import Message, Observation, Task, ToolCall

REWARDS: Final = ("success", "share")
_SLACK_S: Final = 30.0
"""Seconds after an execution's time limit within which the server must answer."""
_QUICK_S: Final = 30.0
_PROMPT: Final[str] = packaged(__package__, "prompt.toml")["task"]


class AppWorldEnv(ToolEnv):
    """Solve a task of AppWorld with Python code. AppWorld's server runs the code, and its tests grade the databases.

    Each episode starts a new server process. The server's folder contains no ground truth, and the tests run in another
    process. An exception in the agent's code is an observation. If the server dies, hangs or answers with an error,
    that is an infrastructure failure, even if the agent's code caused it.

    Args:
        data_dir: the folder ``data`` that ``appworld download data`` writes; by default in ``$APPWORLD_ROOT``.
        python: an interpreter with ``appworld``; by default ``$AGENTGYM_APPWORLD_PYTHON``, or this one.
        url: addresses of running servers, separated by commas. Each runs one episode at a time, and also the tests.
        reward: ``success`` gives 1.0 if all tests pass, else 0.0; ``share`` gives the share of tests that pass. In both
            cases an episode is a success if all tests pass.
        max_turns: turns after which an episode is truncated and graded; AppWorld's agents have 50.
        execute_timeout_s: time limit of a piece of code in whole seconds, after which the agent sees an exception.
        load_timeout_s: time limit in seconds of starting, of loading a task, and of grading, each.
        max_chars: longest output that is shown, in characters.
        others: ``render_mode``, as in Gymnasium.

    Raises:
        UsageError: the data or the interpreter are missing.
    """

    is_blocking: ClassVar[bool] = True
    is_live = False
    said = SinceReset[dict[str, Any]]()
    """The server's description of the current task: instruction, supervisor and time."""

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        python: str | None = None,
        url: str = "",
        reward: str = "success",
        max_turns: int = 50,
        execute_timeout_s: int = 100,
        load_timeout_s: float = 180.0,
        max_chars: int = 20_000,
        **others: Any,
    ) -> None:
        require_known("reward of AppWorld", reward, REWARDS)
        if execute_timeout_s < 1 or max_chars < 1:
            raise UsageError("AppWorld: execute_timeout_s and max_chars must be at least 1")
        self._data = AppWorldData(data_dir)
        self._server: Server = (
            RemoteServer(url) if url else OwnServer(self._data, appworld_python(python), load_timeout_s)
        )
        self._is_remote, self._reward = bool(url), reward
        self._execute_timeout_s, self._load_timeout_s, self._max_chars = execute_timeout_s, load_timeout_s, max_chars
        self._is_complete = False
        self._found: dict[str, object] = {}
        self.longest_step_s = execute_timeout_s + _SLACK_S + _QUICK_S + load_timeout_s
        super().__init__(max_turns=max_turns, **others)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        name = self._name(task)
        self._is_complete, self._found = False, {}
        self._server.begin(name)
        self.said = self._server.call(
            "initialize",
            self._load_timeout_s,
            task_id=name,
            experiment_name=EXPERIMENT,
            load_ground_truth=self._is_remote,
            timeout_seconds=self._execute_timeout_s,
        )
        try:
            about = {**self.said["supervisor"], "datetime": str(self.said["datetime"]).replace("T", " ")}
            return _PROMPT.format(**about, instruction=self.said["instruction"])
        except (KeyError, TypeError) as error:
            raise EnvError(f"AppWorld's server described the task in another form: {self.said!r}") from error

    @tool
    def execute(self, code: str) -> str:
        """Run Python code in the world's shell and see what it prints.

        Args:
            code: The code; it calls the apps by apis.APP.API(...).
        """
        limit = self._execute_timeout_s + _SLACK_S
        output = self._server.call("execute", limit, task_id=self.task.data["task"], code=code)
        self._is_complete = bool(self._server.call("task_completed", _QUICK_S, task_id=self.task.data["task"]))
        if self._is_complete:
            self.finish()
        shown = str(output).rstrip()
        return shown if len(shown) <= self._max_chars else f"{shown[: self._max_chars]}\n[the rest is not shown]"

    def respond(self, action: Message) -> str | Observation:
        said = super().respond(action)
        self._end_turn()
        return said

    async def arespond(self, action: Message) -> str | Observation:
        said = await super().arespond(action)
        await self._in_thread(self._end_turn)
        return said

    def end_episode(self) -> None:
        self._server.end()

    def stop(self) -> None:
        self._server.close()

    def own_info(self) -> Mapping[str, object]:
        """Return, after the last turn, the number of passed tests, the number of tests, and the unmet requirements."""
        return self._found

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def task_type(self) -> str:
        """AppWorld's difficulty of the task."""
        return f"difficulty {self._data.difficulty(str(self.task.data['task'])) or 'unknown'}"

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of ``train``, ``valid`` (AppWorld's dev), ``test`` (test_normal) or ``test_challenge``."""
        return self._data.tasks(split)

    def oracle(self) -> Message:
        """Return AppWorld's own solution as one call; the test sets have none."""
        name = str(self.task.data["task"])
        solution = self._data.solution(name)
        if solution is None:
            raise UsageError(f"{self.env_id}: AppWorld gives no solution of {name}; those of train and valid have one")
        # in the form in which `appworld verify tasks` runs it
        return self._call(f"requester.raise_on_failure = False\n{solution}\nsolution(apis, requester)")

    def admissible_actions(self) -> tuple[str, ...]:
        """Return calls that look at the apps, and the call that ends the task, for a random policy."""
        looks = ("print(apis.api_docs.show_app_descriptions())", "print(apis.supervisor.show_profile())", "1 / 0")
        ends = ("apis.supervisor.complete_task()", "apis.supervisor.complete_task(answer=1)")
        return tuple(self._call(code).text for code in (*looks, *ends))

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Return code that attacks the tests, their answers, or the server process."""
        path = f"data/tasks/{self.task.data['task']}/ground_truth/answer.json"
        passing = (
            "evaluator.TestTracker.success = True\nevaluator.TestTracker.pass_count = evaluator.TestTracker.num_tests"
        )
        tricks = {
            "do nothing": "answer = -1",
            "read the answer": f"import pathlib\nanswer = json.loads(pathlib.Path('{path}').read_text())",
            "patch the tests": f"from appworld import evaluator\n{passing}\nanswer = -1",
        }
        return {
            trick: [self._call(f"{code}\napis.supervisor.complete_task(answer=answer)")]
            for trick, code in tricks.items()
        }

    def state_key(self) -> str:
        """Return a key of the task and the last output; variables and databases are in the server."""
        return canonical([self.task.id, [message.text for message in self.episode.last_observation]])

    # --------------------------------------------------------------------------------------------------- private

    def _task_by_id(self, task_id: str, split: str | None) -> Task:
        return super()._task_by_id(task_id, split or self._data.split_of(task_id))

    def _name(self, task: Task) -> str:
        name = str(task.data.get("task"))
        if task.data.get("digest") != self._data.digest(name):
            raise UsageError(f"task {name!r} was another when it was made; use that version of AppWorld's data")
        return name

    def _call(self, code: str) -> Message:
        call = ToolCall("execute", {"code": code}, "0")
        return Message("assistant", format_call(call, self.tools), (call,))

    def _end_turn(self) -> None:
        """Grade the databases after the last turn, even if the task is not completed, as AppWorld does."""
        if not self._is_complete and (self.max_turns is None or self.turn < self.max_turns):
            return
        name = str(self.task.data["task"])
        found = self._server.judge(name, self._load_timeout_s)
        self._server.end()
        try:
            passed, total = len(found["passes"]), int(found["num_tests"])
            failed = tuple(str(one["requirement"]) for one in found["failures"])
        except (KeyError, TypeError, ValueError) as error:
            raise EnvError(f"AppWorld's tests of {name} gave a result in another form: {found!r}") from error
        if not 0 <= passed <= total or total < 1:
            raise EnvError(f"AppWorld's tests of {name} count {passed} passes of {total}")
        self._found = {"tests_passed": passed, "num_tests": total, "tests_failed": failed}
        self.award(passed / total if self._reward == "share" else float(passed == total))
