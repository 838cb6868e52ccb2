"""``agentgym/WebShop-v0``: buy what an instruction asks for, in an online shop like WebShop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from agentgym.call_syntax import format_call, parse_calls
from agentgym.canonical import canonical, digest
from agentgym.envs.interfaces import Interface, InterfaceEnv
from agentgym.envs.since_reset import SinceReset
from agentgym.envs.webshop.assortment import Assortment, Stock
from agentgym.envs.webshop.oracle import Act, next_act, parse_act
from agentgym.envs.webshop.product import Goal
from agentgym.envs.webshop.reward import Score
from agentgym.envs.webshop.visit import View, Visit
from agentgym.errors import ResetNeededError, ToolError
from agentgym.tool import tool
from agentgym.tools.retrieval.bm25 import terms_of
from agentgym.types import Message, Task, ToolCall

_NO_ACTION = "Write search[keywords] or click[element] on the last line."


_digest = lru_cache(maxsize=1 << 12)(digest)


class WebShopEnv(InterfaceEnv):
    """Buy what an instruction asks for: an online shop with WebShop's pages, actions and reward.

    Products and goals are generated from a seed, or read from WebShop's own files. The reward comes with the purchase:
    the share of the wished attributes, options and price that are met, less a deduction for a product of another kind.
    1.0 is a success.

    Args:
        num_products: size of the generated catalogue, 100 to 100,000; with ``data_dir``, the number that is read.
        catalogue_seed: the seed of the generated catalogue.
        stock: what is generated: ``mall`` for 52 kinds of products and pages as long as WebShop's; ``kiosk`` for eight
            kinds and four results to a page, which small models can read.
        data_dir: folder with WebShop's own files (``items_shuffle*.json`` and ``items_ins_v2*.json``, or also
            ``items_human_ins.json`` for the goals that people wrote).
        max_turns: turns after which an episode is truncated.
        interface: ``tools`` for the tools search and click, ``text`` for WebShop's ``search[...]`` and ``click[...]``.

    Raises:
        UsageError: if a value is out of range or a file is missing; the message says what was expected.

    Example:
        >>> env = WebShopEnv(num_products=200, interface="text")
        >>> observation, info = env.reset(seed=0)
        >>> while not env.step(env.oracle())[2]:
        ...     pass
        >>> env.score.reward
        1.0
    """

    visit = SinceReset[Visit]()
    """The customer of the current episode."""

    def __init__(
        self,
        *,
        num_products: int | None = None,
        catalogue_seed: int = 0,
        stock: Stock = "mall",
        data_dir: str | Path | None = None,
        max_turns: int = 15,
        interface: Interface = "tools",
        render_mode: str | None = None,
    ) -> None:
        self._shop = Assortment(
            num_products=num_products, catalogue_seed=catalogue_seed, stock=stock, data_dir=data_dir
        )
        super().__init__(interface=interface, max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        self.visit = Visit(self._shop.catalogue(task), self._shop.goal(task))
        return self.visit.text()

    @tool
    def search(self, keywords: str) -> str:
        """Search the shop's products by keywords and see the first page of results.

        Args:
            keywords: Words such as: blue running shoes.
        """
        if not keywords.strip():
            raise ToolError("keywords are empty; give words such as: blue running shoes", "invalid_arguments")
        self.visit.search(keywords)
        return self.visit.text()

    @tool
    def click(self, element: str) -> str:
        """Click something on the current page: a button, a product's code, or the value of an option.

        Args:
            element: Its text, such as: Next >, B0US7T2M51, xx-large, Buy Now.
        """
        if not self.visit.click(element.strip()):
            there = ", ".join(self.visit.clickables()) or "nothing, only search is possible"
            raise ToolError(f"no {element!r} to click on this page; there is: {there}", "unknown_element")
        if self.visit.view.page == "done":
            for part in self.visit.score().parts():
                self.award(part.value, part.name, part.role)
            self.finish()
        return self.visit.text()

    def respond_to_text(self, action: Message) -> str:
        """Play a text action; as in WebShop, an impossible one leaves the page as it is."""
        act = parse_act(action.text)
        try:
            if act is None:
                raise ToolError(_NO_ACTION)
            return self.search(act.argument) if act.name == "search" else self.click(act.argument)
        except ToolError:
            self.refuse()
            return _NO_ACTION if act is None else self.visit.text()

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def score(self) -> Score:
        """Score of the purchase, and its parts.

        Raises:
            ResetNeededError: nothing was bought.
        """
        if self.visit.view.page != "done":
            raise ResetNeededError(f"{self.env_id}: nothing was bought in this episode")
        return self.visit.score()

    def tasks(self, split: str) -> Sequence[Task]:
        """Goals; no product is asked for in two splits of a generated shop.

        1,000,000 to train on, 1,000 to validate, 1,000 to test, or the goals that WebShop's files have.
        """
        return self._shop.tasks(split)

    def state_key(self) -> str:
        """Return the goal, the page, and the results of the last search, whatever its wording."""
        goal, view = self.visit.goal, self.visit.view
        shown = (view.page, view.page_number, view.product, view.sub_page, view.options)
        return canonical((goal.asin, _digest(goal.instruction), *shown, _digest(view.results)))

    def dump_state(self) -> tuple[Goal, View]:
        return self.visit.goal, self.visit.view

    def load_state(self, state: tuple[Goal, View]) -> None:
        self.visit = Visit(self._shop.catalogue(self.task), *state)

    def oracle(self) -> Message:
        return self.message_of(next_act(self.visit))

    def admissible_actions(self) -> tuple[str, ...]:
        """Return what can be clicked; with a search bar, a search for the instruction and for each of its words."""
        visit = self.visit
        if visit.view.page == "search":
            wish = visit.goal.instruction.partition(", and price lower")[0].lower()
            return tuple(str(Act("search", keywords)) for keywords in dict.fromkeys((wish, *terms_of(wish))))
        return tuple(str(Act("click", element)) for element in visit.clickables())

    def parse_action(self, text: str) -> Message:
        """Read what a person typed, in either interface: ``search[red shoes]``, or a call as ``search: red shoes``."""
        act = parse_act(text)
        if act is not None:
            return self.message_of(act)
        if self.interface == "text":
            return Message("assistant", text)
        return Message("assistant", text, parse_calls(text, self.tools))

    def message_of(self, act: Act) -> Message:
        """Return an action as the assistant message that gives it in this interface."""
        if self.interface == "text":
            return Message("assistant", str(act))
        call = ToolCall(act.name, {"keywords" if act.name == "search" else "element": act.argument}, "0")
        return Message("assistant", format_call(call, self.tools), (call,))
