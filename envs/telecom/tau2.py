"""``agentgym/Tau2Telecom-v0``: tau2-bench's telecom tasks, from its own files; the user has a phone."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from agentgym.call_syntax import format_call, parse_calls
from agentgym.envs.domains.database import Database
from agentgym.envs.domains.env import Grade
from agentgym.envs.domains.model_user import UserModel
from agentgym.envs.domains.model_user_tools import ModelUserWithTools, UserCalls
from agentgym.envs.domains.task import Case, DomainTask, EnvCall, GoldAction, Scenario, task_of_record
from agentgym.envs.domains.tau2 import Tau2Data, Tau2Env, domain_folder, read_task_files
from agentgym.envs.domains.users import Reading, ScenarioUser, User
from agentgym.envs.telecom.phone import phone_tables
from agentgym.envs.telecom.phone_tools import PhoneTools
from agentgym.envs.telecom.tools import CHECKS, SETUP, TelecomTools, database_tables
from agentgym.envs.telecom.world import PHONE_CHECKS, PHONE_SETUP
from agentgym.errors import CorruptDataError, ToolError, error_text, require_known
from agentgym.tool import Tool
from agentgym.types import Message, Task, ToolCall

if TYPE_CHECKING:
    import httpx

Support = Literal["manual", "workflow"]
SUPPORT: Final = ("manual", "workflow")
_FILES: Final = ("db.toml", "user_db.toml", "tasks.json", "main_policy.md")
_PHONE_SPECS: Final = tuple(one.spec for one in PhoneTools.tools.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCall:
    """A call that the user made on the phone."""

    name: str
    arguments: Mapping[str, object]
    result: str


class Tau2TelecomEnv(Tau2Env):
    """tau2-bench's telecom domain: agent and user both act, the agent on a database, the user on a phone.

    Graded as in tau2: the task's ``env_assertions`` must hold at the end, and where ``reward_basis`` names ``ACTION``
    all gold actions must have been made. A model that plays the user (``user``) gets the thirty tools of the phone;
    what it calls is in ``info["user_calls"]``. The scripted user, which is only for trying things out, makes the calls
    that a message spells out on separate lines, such as ``toggle_data``.

    Args:
        data_dir: folder with tau2's ``db.toml``, ``user_db.toml``, ``tasks.json``, ``split_tasks.json`` and policies;
            by default ``telecom`` in what the environment variable ``AGENTGYM_TAU2_DOMAINS`` names.
        support: ``manual`` is the benchmark's policy for technical support, ``workflow`` its step-by-step form.
        kwargs: those of :class:`~agentgym.envs.domains.env.DomainEnv`.

    Raises:
        UsageError: there is no such folder, or a file is missing.
        CorruptDataError: a file has another format.
    """

    toolkit_class = TelecomTools
    domain = data_below = "telecom"
    toolkit: TelecomTools

    def __init__(self, *, support: Support = "manual", **kwargs: Any) -> None:
        require_known("support policy", support, SUPPORT)
        self._support = support
        self._user_calls: list[UserCall] = []
        super().__init__(**kwargs)

    def read(self, folder: str | Path) -> Tau2Data:
        return load_telecom(folder, self._support)

    def case_of(self, task: Task) -> Case:
        case = super().case_of(task)
        tools = TelecomTools(Database(case.tables))
        for call in case.task.setup:
            try:
                tools.set_up(call)
            except (KeyError, TypeError, ToolError) as error:
                raise CorruptDataError(f"task {case.task.id!r}: {call.name} cannot be run: {error}") from error
        changes = tools.db.changes()
        return replace(case, tables={name: {**rows, **changes.get(name, {})} for name, rows in case.tables.items()})

    def scripted_user(self, case: Case, seed: int) -> User:
        return ObedientUser(case.task.scenario, self.run_on_phone)

    def model_user(self, case: Case, options: UserModel, seed: int, http: httpx.Client) -> User:
        return ModelUserWithTools(case.task.scenario, options, seed, http, tools=_PHONE_SPECS, run=self.run_on_phone)

    def run_on_phone(self, name: str, arguments: Mapping[str, object]) -> str:
        """Run a call of the user on the phone, record it, and return its result as text."""
        action = GoldAction(name, arguments, "user")
        try:
            result = str(self.toolkit.phone.call(action))
            self.toolkit.sync()
            self._note_made(action)
        except ToolError as error:
            result = f"Error: {error}"
        self._user_calls.append(UserCall(name=name, arguments=dict(arguments), result=result))
        return result

    def _use(self, tool: Tool, arguments: Mapping[str, object]) -> str:
        said = super()._use(tool, arguments)
        self.toolkit.sync()
        return said

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def grade(self) -> Grade:
        """Grade the task: its checks must hold now, and its gold actions must have been made if they count."""
        task = self.case.task
        is_right = not self._failed_checks()
        if task.needs_actions:
            is_right = is_right and len(self.conversation.made) == len(task.actions)
        return Grade(is_database_right=is_right, untold=())

    def own_info(self) -> Mapping[str, object]:
        calls, self._user_calls = tuple(self._user_calls), []
        info = {**super().own_info(), "user_calls": calls}
        return {**info, "failed_checks": self._failed_checks()} if self.episode.is_over else info

    def random_calls(self) -> Iterable[GoldAction]:
        """Return calls about the user, whose phone number is in the scenario."""
        number = self.toolkit.phone.around["phone_number"]
        if number is None:
            return
        yield GoldAction("get_customer_by_phone", {"phone_number": number})
        customer = self.toolkit.get_customer_by_phone(number)
        for line_id in customer["line_ids"]:
            ids = {"customer_id": customer["customer_id"], "line_id": line_id}
            yield GoldAction("get_data_usage", ids)
            yield GoldAction("enable_roaming", ids)
            yield GoldAction("disable_roaming", ids)

    def oracle(self) -> Message:
        """Return the next gold action; for a user's action, a message that asks for it."""
        message = super().oracle()
        if not message.calls:
            return message
        left = [one for place, one in enumerate(self.case.task.actions) if place not in self.conversation.made]
        if left[0].requestor != "user":
            return message
        call = format_call(ToolCall(left[0].name, left[0].arguments), _PHONE_SPECS)
        return Message("assistant", f"Please do this on your phone:\n{call}")

    # --------------------------------------------------------------------------------------------------- private

    def _failed_checks(self) -> tuple[str, ...]:
        return tuple(call.name for call in self.case.task.checks if not self.toolkit.holds(call))


class ObedientUser(ScenarioUser):
    """A user that recites a scenario, and makes the calls that a message spells out on separate lines."""

    def __init__(self, scenario: Scenario, run: UserCalls) -> None:
        super().__init__(scenario)
        self._run = run

    def reply(self, state: Reading, heard: str) -> tuple[Reading, str]:
        """Return the new state and the answer; calls in the message are made first and their results reported."""
        named = [line for line in heard.splitlines() if line.partition(":")[0].strip() in PhoneTools.tools]
        calls = [call for call in parse_calls("\n".join(named), _PHONE_SPECS) if isinstance(call, ToolCall)]
        if not calls:
            return super().reply(state, heard)
        return state, "\n".join(self._run(call.name, call.arguments) for call in calls)


# ------------------------------------------------------------------------------------------------------------- files


def load_telecom(folder: str | Path, support: Support = "manual") -> Tau2Data:
    """Read a folder such as ``data/tau2/domains/telecom`` of a checkout of sierra-research/tau2-bench.

    Raises:
        UsageError: a file is missing.
        CorruptDataError: a file has another format.
    """
    return _load(Path(folder).expanduser().resolve(), support)


@lru_cache(maxsize=4)
def _load(path: Path, support: Support) -> Tau2Data:
    technical = f"tech_support_{support}.md"
    folder = domain_folder(path, "telecom", (*_FILES, technical))
    try:
        tables = {**database_tables(_toml(folder / "db.toml")), **phone_tables(_toml(folder / "user_db.toml"))}
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"{folder / 'db.toml'} is no telecom database ({error})") from error
    main, tech = ((folder / name).read_text(encoding="utf-8") for name in ("main_policy.md", technical))
    policy = (
        f"<main_policy>\n{main}\n</main_policy>\n<tech_support_policy>\n{tech}\n</tech_support_policy>"  # as tau2 joins
    )
    return Tau2Data(policy=policy, tables=tables, **read_task_files(folder, _task_of))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CorruptDataError(f"{path} is not TOML: {error}") from error


def _task_of(record: Any) -> DomainTask:
    """Return a task from a record of ``tasks.json``."""
    try:
        start = record.get("initial_state") or {}
        criteria = record["evaluation_criteria"]
        if start.get("initialization_data") or start.get("message_history"):
            raise CorruptDataError(f"task {record['id']!r} begins with data or messages, which is not supported")
        unknown = set(criteria["reward_basis"]) - {"ENV_ASSERTION", "ACTION"}
        if unknown or "ENV_ASSERTION" not in criteria["reward_basis"]:
            raise CorruptDataError(f"task {record['id']!r} is graded by {', '.join(criteria['reward_basis'])}")
        task = task_of_record({**record, "initial_state": None})
        return replace(
            task,
            setup=tuple(_call(one, SETUP, PHONE_SETUP) for one in start.get("initialization_actions") or ()),
            checks=tuple(_call(one, CHECKS, PHONE_CHECKS) for one in criteria.get("env_assertions") or ()),
            needs_actions="ACTION" in criteria["reward_basis"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        name = record.get("id") if isinstance(record, Mapping) else record
        raise CorruptDataError(f"task {name!r} is not in tau2's format ({error_text(error)})") from error


def _call(record: Mapping[str, Any], ours: Mapping[str, object], users: Mapping[str, object]) -> EnvCall:
    known = users if record["env_type"] == "user" else ours
    if record["func_name"] not in known:
        raise CorruptDataError(f"{record['env_type']} has no function {record['func_name']!r}")
    return EnvCall(record["env_type"], record["func_name"], record["arguments"], record.get("assert_value", True))
