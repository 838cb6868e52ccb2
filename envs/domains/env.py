"""The environment of a domain, in which the agent talks with a user and calls tools over a database."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from agentgym.call_syntax import format_call, parse_words
from agentgym.canonical import canonical
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.domains.database import Changes, Database
from agentgym.envs.domains.model_user import ModelUser, UserModel, user_http
from agentgym.envs.domains.task import Case, GoldAction
from agentgym.envs.domains.toolkit import Toolkit, bound
from agentgym.envs.domains.users import OUT_OF_SCOPE, TRANSFER, ScenarioUser, User, is_end, is_yes, spoken
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import EnvError, ToolError, UsageError
from agentgym.settings import Range, check_number, checked
from agentgym.tool import Tool
from agentgym.types import Message, Observation, RewardRole, Task, ToolCall

if TYPE_CHECKING:
    import httpx

UNIDENTIFIED = "acted before the user was identified"
ANOTHER_USER = "touched another user's data"
UNCONFIRMED = "wrote without the user's yes"
_SAID_NOTHING: Final = "(You said nothing. Write to the user, or call a tool.)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """State of an episode, in addition to its database."""

    user: Any
    """State of the user."""
    who: str = ""
    """Id of the user whom the agent has identified."""
    has_consent: bool = False
    """True if the user's last message was a yes."""
    is_transferred: bool = False
    told: frozenset[str] = frozenset()
    """Texts of the task's ``communicate_info`` that the agent has told the user."""
    made: frozenset[int] = frozenset()
    """Indices of the gold actions that have been called."""
    violations: tuple[str, ...] = ()


class DomainEnv(ToolEnv):
    """Help a user with tools over a database, under a written policy.

    A message without a call goes to the user, whose answer is the observation; calls go to the tools. The conversation
    ends when the user ends it, or with the first message after a call of the tool that transfers the user. The outcome
    is 1 if the final database equals the one after the gold actions and the user has been told the required
    information, else 0. Actions that the tools allow but the policy forbids are listed in ``info["violations"]`` and
    cost ``violation_cost`` each.

    A domain is a subclass with a ``toolkit_class`` and an implementation of :meth:`case_of`, and of :meth:`tasks`
    unless tasks differ only in their seed. It may define its own scripted user and oracle.

    Args:
        user: ``scripted``, or the model that plays the user: a :class:`~agentgym.envs.domains.model_user.UserModel` or
            its fields, such as ``{"url": "http://127.0.0.1:8000/v1", "model": "qwen"}``.
        violation_cost: cost of each violation of the policy, taken off the reward.
        max_turns: turns after which an episode is truncated without an outcome.

    Raises:
        UsageError: a value is out of range.
    """

    toolkit_class: ClassVar[type[Toolkit]] = Toolkit
    takes_words: ClassVar[bool] = True
    phrases: ClassVar[Sequence[str]] = (
        "How can I help you?",
        "Do you confirm (yes/no)?",
        "Is there anything else I can help with?",
    )
    """Phrases that a random policy says to the user."""
    case = SinceReset[Case]()
    """Initial data of the current episode."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls._tools = {name: bound(tool, _run_tool) for name, tool in cls.toolkit_class.tools.items()}

    def __init__(
        self,
        *,
        user: str | Mapping[str, object] | UserModel = "scripted",
        violation_cost: float = 0.1,
        max_turns: int = 60,
        render_mode: str | None = None,
    ) -> None:
        self._user_model = _user_model(user)
        check_number("violation_cost", violation_cost, Range(at_least=0))
        self._violation_cost = violation_cost
        self._http = None if self._user_model is None else user_http(self._user_model.url)
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------------ methods to implement

    def case_of(self, task: Task) -> Case:
        """Return the initial data of an episode, which depend only on the task."""
        raise NotImplementedError(f"{type(self).__name__} must implement case_of(task)")

    def scripted_user(self, case: Case, seed: int) -> User:
        """Return a user without a model; by default one who reads the scenario out. ``seed`` may vary the wording."""
        return ScenarioUser(case.task.scenario)

    def model_user(self, case: Case, options: UserModel, seed: int, http: httpx.Client) -> User:
        """Return the user that a model plays."""
        return ModelUser(case.task.scenario, options, seed, http)

    def random_calls(self) -> Iterable[GoldAction]:
        """Return calls for a random policy. They are not taken from the gold actions, which would reveal them."""
        return ()

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        self._set_up(task, int(self.np_random.integers(2**31)))
        self.conversation = Conversation(user=None)  # a user with tools may act before its first message
        state, said = self._user.begin()
        if is_end(said):
            raise EnvError(f"{self.env_id}: the user ended the conversation in its first message: {said[:200]!r}")
        self.conversation = replace(self.conversation, user=state)
        self._note_words(said)
        return f"{self.case.policy.strip()}\n\nThe user writes:\n{said}"

    def respond(self, action: Message) -> str | Observation:
        return super().respond(action) if action.calls else self._talk(action.text)

    async def arespond(self, action: Message) -> str | Observation:
        if action.calls:
            return await super().arespond(action)
        if self._user.is_blocking:
            return await self._in_thread(self._talk, action.text)
        return self._talk(action.text)

    async def astart(self, task: Task) -> str | Observation:
        if self._user_model is not None:
            return await self._in_thread(self.start, task)
        return self.start(task)

    def _talk(self, text: str) -> str:
        """Send a message to the user, and end the episode if the answer is the last one."""
        heard = spoken(text)
        if not heard:
            self.refuse()
            return _SAID_NOTHING
        now = self.conversation
        state, said = (now.user, TRANSFER) if now.is_transferred else self._user.reply(now.user, heard)
        told = now.told | {info for info in self.case.task.communicate_info if is_told(info, heard)}
        # read the conversation again, since a user with tools may have made gold actions
        self.conversation = replace(self.conversation, user=state, told=told, has_consent=is_yes(said))
        self._note_words(said)
        if is_end(said):
            # out of scope: the user cannot go on, so the conversation is no solution, whatever the database is
            self.finish(float(OUT_OF_SCOPE not in said and self.grade().is_right))
        return said

    def _use(self, tool: Tool, arguments: Mapping[str, object]) -> str:
        """Run a tool and record violations of the policy."""
        action = GoldAction(tool.name, arguments)
        now = self._note_made(action)
        slips = self._violations_of(action)
        result = tool.call(self.toolkit, arguments)
        if tool.name in self.toolkit.identifies:
            now = replace(now, who=now.who or str(result))
        for slip in slips:
            self.award(-self._violation_cost, "policy_violation", RewardRole.COST)
            now = replace(now, violations=(*now.violations, slip))
        self.conversation = replace(now, is_transferred=now.is_transferred or tool.name == self.toolkit.transfer)
        return result if isinstance(result, str) else json.dumps(result)

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def own_info(self) -> Mapping[str, object]:
        info = {**self._told_of_user(), "violations": self.conversation.violations}
        if not self.episode.is_over:
            return info
        outcome = self.grade()
        return {**info, "is_database_right": outcome.is_database_right, "untold": outcome.untold}

    def grade(self) -> Grade:
        """Grade the episode as if it ended now."""
        return grade(self.case, self.toolkit, self.conversation.told)

    def state_key(self) -> str:
        """Return a key of the task, the database, the user, the identified user, the told texts, and the gold calls
        made.
        """
        now = self.conversation
        talk = (self._user.key(now.user), now.who, now.has_consent, now.is_transferred)
        return canonical([self._task_key, self.toolkit.db.hash(), talk, now.told, now.made])

    def dump_state(self) -> tuple[int, Conversation, Changes]:
        return self._user_seed, self.conversation, self.toolkit.db.dump()

    def load_state(self, state: tuple[int, Conversation, Changes]) -> None:
        user_seed, conversation, written = state
        self._set_up(self.task, user_seed)
        self.conversation = conversation
        self.toolkit.db.load(written)

    def parse_action(self, text: str) -> Message:
        return parse_words(text, self.tools)

    def oracle(self) -> Message:
        """Return the next gold action, announced to the user if it writes. It assumes a user who always agrees."""
        if self._user_model is not None:
            raise UsageError(f"{self.env_id}: the oracle needs the scripted user, not a model")
        now, task = self.conversation, self.case.task
        if now.is_transferred:
            return Message("assistant", "You are being transferred to a person. Please hold on.")
        left = [action for place, action in enumerate(task.actions) if place not in now.made]
        if not left:
            untold = [info for info in task.communicate_info if info not in now.told]
            return Message("assistant", " ".join([*untold, "Is there anything else I can do for you?"]))
        if left[0].name not in self.toolkit.writes or now.has_consent:
            return self.message_of(left[0])
        call = format_call(ToolCall(left[0].name, left[0].arguments), self.tools)
        return Message("assistant", f"I am about to do this: {call}. Do you confirm (yes/no)?")

    def admissible_actions(self) -> tuple[str, ...]:
        """Return some phrases and those of :meth:`random_calls` that the tools accept in this state."""
        at = self.toolkit.db.hash()
        if at not in self._possible:
            possible = {self.message_of(action).text for action in self.random_calls() if self._is_possible(action)}
            self._possible[at] = tuple(sorted(possible))
        return (*self.phrases, *self._possible[at])

    def message_of(self, action: GoldAction) -> Message:
        """Return the assistant message with a call."""
        call = ToolCall(action.name, action.arguments, "0")
        return Message("assistant", format_call(call, self.tools), (call,))

    def stop(self) -> None:
        if self._http is not None:
            self._http.close()

    # --------------------------------------------------------------------------------------------------- private

    def _set_up(self, task: Task, user_seed: int) -> None:
        self.case, self._user_seed = self.case_of(task), user_seed
        self._user: User
        self._task_key = task.content_hash
        self.toolkit = self.toolkit_class(Database(self.case.tables))
        if self._user_model is not None and self._http is not None:
            self._user = self.model_user(self.case, self._user_model, user_seed, self._http)
        else:
            self._user = self.scripted_user(self.case, user_seed)
        self._users_words: str | None = None
        self._possible: dict[str, tuple[str, ...]] = {}

    def _note_made(self, action: GoldAction) -> Conversation:
        """Record a call if it is a gold action that has not been made yet."""
        now = self.conversation
        self.conversation = replace(now, made=now.made | _places(action, self.case.task.actions, now.made))
        return self.conversation

    def _violations_of(self, action: GoldAction) -> tuple[str, ...]:
        """Return the violations of the policy that a call would be, although the tools allow it."""
        found: list[str] = []
        now, owner = self.conversation, self.toolkit.owner_of(action)
        if owner is not None and owner != now.who:
            found.append(ANOTHER_USER if now.who else UNIDENTIFIED)
        if action.name in self.toolkit.writes and not now.has_consent:
            found.append(UNCONFIRMED)
        return tuple(found)

    def _is_possible(self, action: GoldAction) -> bool:
        """Return True if the tools accept a call, which is tried on a copy of the database."""
        trial = self.toolkit_class(Database(self.case.tables, self.toolkit.db.dump()))
        try:
            trial.call(action)
        except ToolError:
            return False
        return True

    def _note_words(self, said: str) -> None:
        self._users_words = said

    def _begun(self, said: str | Observation) -> tuple[Observation, dict[str, object]]:
        observation, info = super()._begun(said)
        return observation, {**info, **self._told_of_user()}

    def _told_of_user(self) -> dict[str, object]:
        """Return the user's message of this turn with its seed; empty if there is none."""
        words, self._users_words = self._users_words, None
        return {} if words is None else {"user": {"said": words, "seed": self._user_seed}}


def _run_tool(env: DomainEnv, tool: Tool, arguments: Mapping[str, object]) -> str:
    return env._use(tool, arguments)


def _places(action: GoldAction, gold: Any, made: frozenset[int]) -> frozenset[int]:
    """Return the index of a call among the remaining gold actions; empty if it is not among them."""
    for place, wanted in enumerate(gold):
        if place not in made and wanted.is_made_by(action.name, action.arguments):
            return frozenset({place})
    return frozenset()


def _user_model(user: str | Mapping[str, Any] | UserModel) -> UserModel | None:
    if isinstance(user, UserModel):
        return user
    if isinstance(user, Mapping):
        return checked(UserModel, user, "user")
    if user != "scripted":
        example = 'user={"url": "http://127.0.0.1:8000/v1", "model": "NAME"}'
        raise UsageError(f"user is 'scripted' or a model, as in '{example}'; got {user!r}")
    return None


# ---------- grading: the database after the gold actions, and the information that the user must be told The rules are
# tau2's (``evaluator_env.py`` and ``evaluator_communicate.py`` of sierra-research/tau2-bench): gold actions are
# replayed on a fresh database and the hashes compared; a text counts as told if a message to the user contains it, in
# lower case and without commas. Rejected gold actions are ignored in tau2's own tasks alone. tau2 further asks a
# language model about ``nl_assertions``, which is not done here; ``communicate_info`` says the same in texts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The two conditions of a success."""

    is_database_right: bool
    untold: tuple[str, ...]
    """Required texts that the user was not told."""

    @property
    def is_right(self) -> bool:
        """True if both conditions hold."""
        return self.is_database_right and not self.untold


def grade(case: Case, toolkit: Toolkit, told: Collection[str]) -> Grade:
    """Compare the final database with that after the gold actions, and the told texts with the required ones.

    Args:
        case: initial data of the episode.
        toolkit: the tools over the database of the episode.
        told: texts of the task's ``communicate_info`` that the user was told.
    """
    gold = type(toolkit)(Database(case.tables))
    gold.replay(case.task.actions, allows_rejected=case.task.allows_rejected)
    return Grade(
        is_database_right=toolkit.db.hash() == gold.db.hash(),
        untold=tuple(text for text in case.task.communicate_info if text not in told),
    )


def is_told(info: str, said: str) -> bool:
    """Return True if a message to the user contains a required text.

    Example:
        >>> is_told("1126.04", "You will get $1,126.04 back."), is_told("Mastercard", "You paid by visa.")
        (True, False)
    """
    return info.lower() in said.lower().replace(",", "")
