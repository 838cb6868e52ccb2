"""The agent's thirteen tools of tau2-bench's telecom domain, over a database in its schema.

The effects, refusals and database changes of each tool follow ``src/tau2/domains/telecom/tools.py`` and
``environment.py`` of sierra-research/tau2-bench (MIT), and are compared with them by ``benchmarks/tau2/parity.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from agentgym.canonical import digest
from agentgym.envs.domains.database import Database, Record, copied
from agentgym.envs.domains.task import EnvCall
from agentgym.envs.domains.toolkit import Toolkit
from agentgym.envs.telecom.phone_tools import PhoneTools
from agentgym.envs.telecom.world import PHONE_CHECKS, PHONE_SETUP
from agentgym.errors import ToolError, UsageError
from agentgym.tool import tool

TODAY: Final = "2025-02-25"
"""The date on which all tasks take place."""
_LAST_MONTH: Final = ("2025-01-01", "2025-01-31", "2025-01-15")
_NEXT_MONTH: Final = ("2025-03-01", "2025-03-31", "2025-03-15")
"""First and last day, and the day on which a bill of that month is due."""
_CYCLE_END: Final = "2025-02-28"
_KINDS: Final = {"L": "lines", "D": "devices", "B": "bills", "C": "customers", "P": "plans"}
_NEARLY = 1e-6


class TelecomTools(Toolkit):
    """Look up and change customers, lines and bills; ``phone`` is the user's, which the agent cannot touch."""

    transfer = "transfer_to_human_agents"

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.phone = PhoneTools(db)

    # ---------------------------------------------------------------------------------------------------- look-ups

    @tool
    def get_customer_by_phone(self, phone_number: str) -> Record:
        """Find the customer of a phone number.

        Args:
            phone_number: Number of the contact or of a line, such as 555-123-2001.
        """
        for _, customer in self.db.rows("customers"):
            numbers = {self.need("lines", line_id, "line")["phone_number"] for line_id in customer["line_ids"]}
            if phone_number in {customer["phone_number"], *numbers}:
                return customer
        raise ToolError(f"no customer has the phone number {phone_number!r}", "not_found")

    @tool
    def get_customer_by_id(self, customer_id: str) -> Record:
        """See a customer.

        Args:
            customer_id: Id of the customer, such as C1001.
        """
        return self.need("customers", customer_id, "customer")

    @tool
    def get_customer_by_name(self, full_name: str, dob: str) -> list[Record]:
        """Find customers by name and date of birth.

        Args:
            full_name: First and last name.
            dob: Date of birth, such as 1985-06-15.
        """
        return [
            one
            for _, one in self.db.rows("customers")
            if one["full_name"].lower() == full_name.lower() and one["date_of_birth"] == dob
        ]

    @tool
    def get_details_by_id(self, id: str) -> Record:
        """See a customer, line, device, bill or plan.

        Args:
            id: Its id, which begins with C, L, D, B or P.
        """
        if id[:1] not in _KINDS:
            raise ToolError(f"an id begins with {', '.join(_KINDS)}; got {id!r}", "invalid_arguments")
        return self.need(_KINDS[id[0]], id, "record")

    @tool
    def get_bills_for_customer(self, customer_id: str, limit: int = 12) -> list[Record]:
        """See a customer's bills, the latest first.

        Args:
            customer_id: Id of the customer.
            limit: How many at most.
        """
        customer = self.need("customers", customer_id, "customer")
        bills = [self.need("bills", bill_id, "bill") for bill_id in customer["bill_ids"]]
        return sorted(bills, key=lambda bill: str(bill["issue_date"]), reverse=True)[:limit]

    @tool
    def get_data_usage(self, customer_id: str, line_id: str) -> Record:
        """See how much data a line has used in this cycle, and how much it may.

        Args:
            customer_id: Id of the customer.
            line_id: Id of the line.
        """
        line = self._line(customer_id, line_id)
        return {
            "line_id": line_id,
            "data_used_gb": line["data_used_gb"],
            "data_limit_gb": self.need("plans", line["plan_id"], "plan")["data_limit_gb"],
            "data_refueling_gb": line["data_refueling_gb"],
            "cycle_end_date": _CYCLE_END,
        }

    @tool
    def transfer_to_human_agents(self, summary: str) -> str:
        """Hand the user over to a person. Only for what none of the tools can do, or when the user asks for it.

        Args:
            summary: What the user needs.
        """
        return "Transfer successful"

    # ----------------------------------------------------------------------------------------------------- changes

    @tool
    def suspend_line(self, customer_id: str, line_id: str, reason: str) -> Record:
        """Suspend an active line, for six months at most.

        Args:
            customer_id: Id of the customer.
            line_id: Id of the line.
            reason: Why.
        """
        if self._line(customer_id, line_id)["status"] != "Active":
            raise ToolError("only an active line can be suspended")
        line = self.db.edit("lines", line_id)
        line.update(status="Suspended", suspension_start_date=TODAY)
        return {"message": "The line is suspended; holding it costs 5 dollars a month.", "line": line}

    @tool
    def resume_line(self, customer_id: str, line_id: str) -> Record:
        """Activate a line that is suspended or waits to be activated.

        Args:
            customer_id: Id of the customer.
            line_id: Id of the line.
        """
        if self._line(customer_id, line_id)["status"] not in ("Suspended", "Pending Activation"):
            raise ToolError("only a line that is suspended, or waits to be activated, can be resumed")
        line = self.db.edit("lines", line_id)
        line.update(status="Active", suspension_start_date=None)
        return {"message": "The line is active.", "line": line}

    @tool
    def send_payment_request(self, customer_id: str, bill_id: str) -> str:
        """Ask a customer to pay a bill; one bill at a time. It does not check whether the bill is paid already.

        Args:
            customer_id: Id of the customer.
            bill_id: Id of the bill.
        """
        if self._awaiting_payment(customer_id):
            raise ToolError("a bill of this customer awaits payment already")
        if bill_id not in self.need("customers", customer_id, "customer")["bill_ids"]:
            raise ToolError(f"the customer has no bill {bill_id!r}", "not_found")
        self.need("bills", bill_id, "bill")
        self.db.edit("bills", bill_id)["status"] = "Awaiting Payment"
        return f"The customer was asked to pay bill {bill_id}."

    @tool
    def enable_roaming(self, customer_id: str, line_id: str) -> str:
        """Allow a line to be used abroad.

        Args:
            customer_id: Id of the customer.
            line_id: Id of the line.
        """
        self._line(customer_id, line_id)
        self.db.edit("lines", line_id)["roaming_enabled"] = True
        return "Roaming is enabled."

    @tool
    def disable_roaming(self, customer_id: str, line_id: str) -> str:
        """Keep a line from being used abroad.

        Args:
            customer_id: Id of the customer.
            line_id: Id of the line.
        """
        self._line(customer_id, line_id)
        self.db.edit("lines", line_id)["roaming_enabled"] = False
        return "Roaming is disabled."

    @tool
    def refuel_data(self, customer_id: str, line_id: str, gb_amount: float) -> Record:
        """Add data to a line; the plan's price for them goes onto the customer's next bill.

        Args:
            customer_id: Id of the customer.
            line_id: Id of the line.
            gb_amount: Gigabytes.
        """
        line = self._line(customer_id, line_id)
        if gb_amount <= 0:
            raise ToolError("the amount must be above 0", "invalid_arguments")
        price = self.need("plans", line["plan_id"], "plan")["data_refueling_price_per_gb"]
        line = self.db.edit("lines", line_id)
        line["data_refueling_gb"] += gb_amount
        self._charge(customer_id, gb_amount * price, f"Data refueling: {gb_amount} GB at ${price}/GB")
        return {
            "message": f"{gb_amount} GB were added to line {line_id}.",
            "new_data_refueling_gb": line["data_refueling_gb"],
            "charge": gb_amount * price,
        }

    # ------------------------------------------------------------------ called by the environment, not by the agent

    def sync(self) -> None:
        """Copy the line's state from the database to the phone, and payments from the phone to the database."""
        number = self.phone.around["phone_number"]
        if number is None:
            return
        line = next((one for _, one in self.db.rows("lines") if one["phone_number"] == number), None)
        if line is None:
            raise UsageError(f"the task is about the phone number {number}, which no line has")
        plan = self.need("plans", line["plan_id"], "plan")
        self._see(
            line_active=line["status"] == "Active",
            roaming_allowed=bool(line["roaming_enabled"]),
            mobile_data_usage_exceeded=line["data_used_gb"] >= plan["data_limit_gb"] + line["data_refueling_gb"],
        )
        request = self.phone.around["payment_request"]
        if request is not None and request["paid"]:
            self.db.edit("bills", request["bill_id"])["status"] = "Paid"
            self._see(payment_request=None)
        if self.phone.around["payment_request"] is None:
            waiting = self._awaiting_payment(self.get_customer_by_phone(number)["customer_id"])
            if waiting:
                bill = self.need("bills", waiting[0], "bill")
                asked = {"bill_id": waiting[0], "amount_due": bill["total_due"], "paid": False}
                self._see(payment_request=asked)

    def set_up(self, call: EnvCall) -> None:
        """Run one of a task's ``initialization_actions``."""
        if call.side == "user":
            PHONE_SETUP[call.name](self.phone, **call.arguments)
        else:
            SETUP[call.name](self, **call.arguments)
        self.sync()

    def holds(self, call: EnvCall) -> bool:
        """Return True if one of a task's ``env_assertions`` holds."""
        if call.side == "user":
            return PHONE_CHECKS[call.name](self.phone, **call.arguments) == call.wanted
        return CHECKS[call.name](self, **call.arguments) == call.wanted

    # ------------------------------------------------------------------------------------------------------ private

    def _see(self, **values: Any) -> None:
        """Set fields of the surroundings; write nothing if all have these values already."""
        if any(self.phone.around[key] != value for key, value in values.items()):
            self.phone.change_around(**values)

    def _line(self, customer_id: str, line_id: str) -> Record:
        if line_id not in self.need("customers", customer_id, "customer")["line_ids"]:
            raise ToolError(f"customer {customer_id} has no line {line_id!r}", "not_found")
        return self.need("lines", line_id, "line")

    def _awaiting_payment(self, customer_id: str) -> list[str]:
        bill_ids = self.need("customers", customer_id, "customer")["bill_ids"]
        return [one for one in bill_ids if self.need("bills", one, "bill")["status"] == "Awaiting Payment"]

    def _charge(self, customer_id: str, amount: float, description: str) -> None:
        """Add an amount to the customer's next bill, and make the bill if there is none."""
        bill_ids = self.need("customers", customer_id, "customer")["bill_ids"]
        drafts = [one for one in bill_ids if self.need("bills", one, "bill")["status"] == "Draft"]
        if not drafts:
            # tau2 draws the id at random; here replays must give the same one
            drafts = [f"B{digest([customer_id, list(bill_ids)])[:8]}"]
            self._add_bill(customer_id, drafts[0], _NEXT_MONTH, "Draft")
        self._add_item(drafts[0], amount, description)

    def _add_bill(self, customer_id: str, bill_id: str, month: tuple[str, str, str], status: str) -> None:
        first, last, due = month
        self.db.edit("bills", bill_id).update(
            bill_id=bill_id,
            customer_id=customer_id,
            period_start=first,
            period_end=last,
            issue_date=first,
            total_due=0.0,
            due_date=due,
            line_items=[],
            status=status,
        )
        self.db.edit("customers", customer_id)["bill_ids"].append(bill_id)

    def _add_item(self, bill_id: str, amount: float, description: str) -> None:
        bill = self.db.edit("bills", bill_id)
        kind = "Credit" if amount < 0 else "Charge"
        bill["line_items"].append({"description": description, "amount": amount, "date": TODAY, "item_type": kind})
        bill["total_due"] += amount


def _set_data_usage(tools: TelecomTools, customer_id: str, line_id: str, data_used_gb: float) -> None:
    tools._line(customer_id, line_id)
    tools.db.edit("lines", line_id)["data_used_gb"] = float(data_used_gb)


def _suspend_for_overdue_bill(
    tools: TelecomTools, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool
) -> None:
    line = tools._line(customer_id, line_id)
    price = tools.need("plans", line["plan_id"], "plan")["price_per_month"]
    tools._add_bill(customer_id, new_bill_id, _LAST_MONTH, "Overdue")
    tools._add_item(new_bill_id, price, f"Charge for line {line_id}")
    edited = tools.db.edit("lines", line_id)
    edited.update(status="Suspended", suspension_start_date=TODAY)
    if contract_ended:
        edited["contract_end_date"] = _LAST_MONTH[1]


def _is_paid_or_absent(tools: TelecomTools, overdue_bill_id: str) -> bool:
    bill = tools.db.find("bills", overdue_bill_id)
    return bill is None or bill["status"] == "Paid"


def _is_overdue(tools: TelecomTools, customer_id: str, overdue_bill_id: str) -> bool:
    customer = tools.need("customers", customer_id, "customer")
    bill = tools.need("bills", overdue_bill_id, "bill")
    return overdue_bill_id in customer["bill_ids"] and bill["status"] == "Overdue"


SETUP: Final[Mapping[str, Callable[..., object]]] = {
    "set_data_usage": _set_data_usage,
    "suspend_line_for_overdue_bill": _suspend_for_overdue_bill,
    "enable_roaming": TelecomTools.enable_roaming,
    "disable_roaming": TelecomTools.disable_roaming,
}
"""Changes to the database before a task, by tau2's names."""
CHECKS: Final[Mapping[str, Callable[..., bool]]] = {
    "assert_data_refueling_amount": lambda tools, customer_id, line_id, expected_amount: (
        abs(tools._line(customer_id, line_id)["data_refueling_gb"] - expected_amount) < _NEARLY
    ),
    "assert_line_status": lambda tools, customer_id, line_id, expected_status: (
        tools._line(customer_id, line_id)["status"] == expected_status
    ),
    "assert_overdue_bill_exists": _is_overdue,
    "assert_no_overdue_bill": _is_paid_or_absent,
}
"""Checks of the database after a task, by tau2's names."""


def database_tables(db: Mapping[str, Any]) -> dict[str, dict[str, Record]]:
    """Return the tables of ``db.toml``, whose lists become records by id, completed with tau2's defaults."""
    return {
        table: {str(one[f"{table[:-1]}_id"]): {**_defaults(table), **one} for one in db.get(table, [])}
        for table in _KINDS.values()
    }


_DEFAULTS: Final[Mapping[str, Record]] = {
    "lines": {"status": "Pending Activation", "data_used_gb": 0.0, "data_refueling_gb": 0.0, "roaming_enabled": False},
    "bills": {"line_items": [], "status": "Draft"},
    "customers": {"account_status": "Pending Verification", "payment_methods": [], "line_ids": [], "bill_ids": []},
}


def _defaults(table: str) -> Record:
    defaults: Record = copied(_DEFAULTS.get(table, {}))
    return defaults
