"""The fourteen tools of tau2-bench's airline domain, over a database in its schema.

Their results, errors and database changes follow ``src/tau2/domains/airline/tools.py`` of sierra-research/tau2-bench
(MIT). ``benchmarks/tau2/parity.py`` compares them with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from typing_extensions import TypedDict  # pydantic supports typing's TypedDict only from Python 3.12 on

from agentgym.envs.domains.database import Record, copied
from agentgym.envs.domains.sums import calculated
from agentgym.envs.domains.toolkit import Toolkit
from agentgym.errors import ToolError
from agentgym.tool import tool

Cabin = Literal["business", "economy", "basic_economy"]

NOW: Final = "2024-05-15T15:00:00"
"""Current time in all tasks."""
AIRPORTS: Final = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas",
    "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston",
    "PHX": "Phoenix", "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark",
    "CLT": "Charlotte", "MSP": "Minneapolis", "DTW": "Detroit", "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip
_NEW_RESERVATIONS: Final = ("HATHAT", "HATHAU", "HATHAV")
_NEW_CERTIFICATES: Final = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
_INSURANCE, _BAG = 30, 50  # dollars


class FlightChoice(TypedDict):
    """A flight on a day."""

    flight_number: str
    date: str


class Passenger(TypedDict):
    """One who flies."""

    first_name: str
    last_name: str
    dob: str


class Payment(TypedDict):
    """A share of the price."""

    payment_id: str
    amount: int


class AirlineTools(Toolkit):
    """Look up, book, change and cancel reservations."""

    writes = frozenset(
        {
            "book_reservation",
            "cancel_reservation",
            "send_certificate",
            "update_reservation_baggages",
            "update_reservation_flights",
            "update_reservation_passengers",
        }
    )
    transfer = "transfer_to_human_agents"

    # --------------------------------------------------------------------------------------------------- look-ups

    @tool
    def get_user_details(self, user_id: str) -> Record:
        """See a user's name, address, membership, payment methods, saved passengers and reservations.

        Args:
            user_id: Id of the user, such as mia_li_1234.
        """
        return self.need("users", user_id, "user")

    @tool
    def get_reservation_details(self, reservation_id: str) -> Record:
        """See a reservation's flights, passengers, cabin, bags, insurance and payments.

        Args:
            reservation_id: Id of the reservation, such as 8JX2WO.
        """
        return self.need("reservations", reservation_id, "reservation")

    @tool
    def list_all_airports(self) -> Record:
        """List all airports with their cities."""
        return dict(AIRPORTS)

    @tool
    def get_flight_status(self, flight_number: str, date: str) -> str:
        """See the status of a flight on a day.

        Args:
            flight_number: Number of the flight, such as HAT001.
            date: The day, such as 2024-05-16.
        """
        return str(self._flight_on(flight_number, date)["status"])

    @tool
    def search_direct_flight(self, origin: str, destination: str, date: str) -> list[Record]:
        """Find direct flights between two airports on a day, with free seats and prices.

        Args:
            origin: Airport in three letters, such as JFK.
            destination: Airport in three letters, such as SEA.
            date: The day, such as 2024-05-16.
        """
        return list(self._direct(date, origin=origin, destination=destination))

    @tool
    def search_onestop_flight(self, origin: str, destination: str, date: str) -> list[list[Record]]:
        """Find connections with one stop between two airports on a day, as pairs of flights.

        Args:
            origin: Airport in three letters, such as JFK.
            destination: Airport in three letters, such as SEA.
            date: The day, such as 2024-05-16.
        """
        pairs = []
        for first in self._direct(date, origin=origin):
            arrives = str(first["scheduled_arrival_time_est"])
            # as in tau2: without a zero before one figure, and always in May
            day = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrives else date
            for second in self._direct(day, origin=first["destination"], destination=destination, leaves_after=arrives):
                pairs.append([{**first, "date": date}, {**second, "date": day}])
        return pairs

    @tool
    def calculate(self, expression: str) -> str:
        """Calculate a sum.

        Args:
            expression: Numbers, + - * / and brackets, such as 2 * (120 + 30).
        """
        return str(calculated(expression))

    @tool
    def transfer_to_human_agents(self, summary: str) -> str:
        """Hand the user over to a person. Only for what none of the tools can do, or when the user asks for it.

        Args:
            summary: What the user needs.
        """
        return "Transfer successful"

    # ---------------------------------------------------------------------------------------------------- changes

    @tool
    def book_reservation(  # noqa: PLR0913, PLR0917  (tau2's arguments)
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: Literal["round_trip", "one_way"],
        cabin: Cabin,
        flights: list[FlightChoice],
        passengers: list[Passenger],
        payment_methods: list[Payment],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: Literal["yes", "no"],
    ) -> Record:
        """Book a trip; the payments must add up to its price. Needs the user's yes.

        Args:
            user_id: Id of the user, such as mia_li_1234.
            origin: Airport in three letters, such as SFO.
            destination: Airport in three letters, such as JFK.
            flight_type: round_trip or one_way.
            cabin: basic_economy, economy or business.
            flights: All flights of the trip, in order.
            passengers: All passengers.
            payment_methods: Ids of payment methods of the user, and how much each pays.
            total_baggages: Number of bags.
            nonfree_baggages: How many of them are paid for, at 50 dollars each.
            insurance: yes for 30 dollars a passenger, or no.
        """
        methods = self.need("users", user_id, "user")["payment_methods"]
        new_id = next((one for one in _NEW_RESERVATIONS if self.db.find("reservations", one) is None), None)
        if new_id is None:
            raise ToolError("no more reservations can be made")
        booked = [self._seats(one, cabin, len(passengers)) for one in flights]
        price = len(passengers) * (sum(one["price"] for one in booked) + _INSURANCE * (insurance == "yes"))
        price += _BAG * nonfree_baggages
        for payment in payment_methods:
            method = methods.get(payment["payment_id"])
            if method is None:
                raise ToolError(f"payment method {payment['payment_id']!r} not found", "not_found")
            if method["source"] != "credit_card" and method["amount"] < payment["amount"]:
                raise ToolError(f"payment method {payment['payment_id']!r} holds less than {payment['amount']}")
        paid = sum(payment["amount"] for payment in payment_methods)
        if paid != price:
            raise ToolError(f"the price is {price}, but the payments add up to {paid}", "invalid_arguments")
        self._take_payments(user_id, payment_methods)
        for one in booked:
            self.db.edit("flights", one["flight_number"])["dates"][one["date"]]["available_seats"][cabin] -= len(
                passengers
            )
        self.db.edit("users", user_id)["reservations"].append(new_id)
        reservation = self.db.edit("reservations", new_id)
        reservation.update(
            reservation_id=new_id,
            user_id=user_id,
            origin=origin,
            destination=destination,
            flight_type=flight_type,
            cabin=cabin,
            flights=booked,
            passengers=[dict(one) for one in passengers],
            payment_history=[dict(one) for one in payment_methods],
            created_at=NOW,
            total_baggages=total_baggages,
            nonfree_baggages=nonfree_baggages,
            insurance=insurance,
        )
        return reservation

    @tool
    def cancel_reservation(self, reservation_id: str) -> Record:
        """Cancel a whole reservation; what was paid is refunded. Needs the user's yes.

        Args:
            reservation_id: Id of the reservation, such as 8JX2WO.
        """
        self.need("reservations", reservation_id, "reservation")
        reservation = self.db.edit("reservations", reservation_id)
        paid = reservation["payment_history"]
        paid += [{"payment_id": one["payment_id"], "amount": -one["amount"]} for one in list(paid)]
        reservation["status"] = "cancelled"
        return reservation

    @tool
    def update_reservation_flights(
        self, reservation_id: str, cabin: Cabin, flights: list[FlightChoice], payment_id: str
    ) -> Record:
        """Change the flights or the cabin of a reservation. Needs the user's yes.

        Args:
            reservation_id: Id of the reservation, such as 8JX2WO.
            cabin: basic_economy, economy or business.
            flights: All flights of the reservation from now on, those that stay among them.
            payment_id: Payment method of the user that pays the difference, or gets it.
        """
        reservation = self.need("reservations", reservation_id, "reservation")
        num_passengers = len(reservation["passengers"])
        kept = {(one["flight_number"], one["date"]): one for one in reversed(reservation["flights"])}
        chosen = []
        for one in flights:
            old = kept.get((one["flight_number"], one["date"])) if cabin == reservation["cabin"] else None
            chosen.append(dict(old) if old is not None else self._seats(one, cabin, num_passengers))
        before = sum(one["price"] for one in reservation["flights"])
        difference = num_passengers * (sum(one["price"] for one in chosen) - before)
        self._pay_difference(reservation, payment_id, difference)
        reservation = self.db.edit("reservations", reservation_id)
        reservation.update(flights=chosen, cabin=cabin)
        return reservation

    @tool
    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> Record:
        """Change the number of bags of a reservation. Needs the user's yes.

        Args:
            reservation_id: Id of the reservation, such as 8JX2WO.
            total_baggages: Number of bags from now on.
            nonfree_baggages: How many of them are paid for.
            payment_id: Payment method of the user that pays for them.
        """
        reservation = self.need("reservations", reservation_id, "reservation")
        price = _BAG * max(0, nonfree_baggages - reservation["nonfree_baggages"])
        self._pay_difference(reservation, payment_id, price)
        reservation = self.db.edit("reservations", reservation_id)
        reservation.update(total_baggages=total_baggages, nonfree_baggages=nonfree_baggages)
        return reservation

    @tool
    def update_reservation_passengers(self, reservation_id: str, passengers: list[Passenger]) -> Record:
        """Change who flies, but not how many. Needs the user's yes.

        Args:
            reservation_id: Id of the reservation, such as 8JX2WO.
            passengers: All passengers from now on.
        """
        reservation = self.need("reservations", reservation_id, "reservation")
        if len(passengers) != len(reservation["passengers"]):
            raise ToolError(f"the reservation is for {len(reservation['passengers'])} passengers", "invalid_arguments")
        reservation = self.db.edit("reservations", reservation_id)
        reservation["passengers"] = [dict(one) for one in passengers]
        return reservation

    @tool
    def send_certificate(self, user_id: str, amount: int) -> str:
        """Send a user a certificate, as a compensation.

        Args:
            user_id: Id of the user, such as mia_li_1234.
            amount: Dollars.
        """
        methods = self.need("users", user_id, "user")["payment_methods"]
        new_id = next((one for one in _NEW_CERTIFICATES if one not in methods), None)
        if new_id is None:
            raise ToolError("no more certificates can be sent to this user")
        new = {"source": "certificate", "id": new_id, "amount": float(amount)}
        self.db.edit("users", user_id)["payment_methods"][new_id] = new
        return f"Certificate {new_id} over {amount} dollars was sent to {user_id}."

    # ---------------------------------------------------------------------------------------------------- private

    def _flight_on(self, flight_number: str, date: str) -> Record:
        flight = self.need("flights", flight_number, "flight")
        if date not in flight["dates"]:
            raise ToolError(f"flight {flight_number} does not go on {date}", "not_found")
        on_day: Record = flight["dates"][date]
        return on_day

    def _seats(self, choice: FlightChoice, cabin: Cabin, num_passengers: int) -> Record:
        """Return a flight as reservations hold it, if it has enough seats."""
        flight = self.need("flights", choice["flight_number"], "flight")
        on_day = self._flight_on(choice["flight_number"], choice["date"])
        if on_day["status"] != "available":
            raise ToolError(f"flight {choice['flight_number']} is not available on {choice['date']}")
        if on_day["available_seats"][cabin] < num_passengers:
            raise ToolError(f"flight {choice['flight_number']} has not enough seats in {cabin} on {choice['date']}")
        return {
            "flight_number": choice["flight_number"],
            "origin": flight["origin"],
            "destination": flight["destination"],
            "date": choice["date"],
            "price": on_day["prices"][cabin],
        }

    def _direct(
        self, date: str, *, origin: str, destination: str | None = None, leaves_after: str | None = None
    ) -> Iterator[Record]:
        for number, flight in self.db.rows("flights"):
            on_day = flight["dates"].get(date)
            leaves = flight["scheduled_departure_time_est"]
            if (
                flight["origin"] == origin
                and destination in (None, flight["destination"])
                and on_day is not None
                and on_day["status"] == "available"
                and (leaves_after is None or leaves >= leaves_after)
            ):
                yield {
                    "flight_number": number,
                    "origin": origin,
                    "destination": flight["destination"],
                    "status": "available",
                    "scheduled_departure_time_est": leaves,
                    "scheduled_arrival_time_est": flight["scheduled_arrival_time_est"],
                    "available_seats": copied(on_day["available_seats"]),
                    "prices": copied(on_day["prices"]),
                }

    def _take_payments(self, user_id: str, payments: Sequence[Payment]) -> None:
        """Take payments off gift cards; a certificate is used up."""
        methods: Any = self.db.edit("users", user_id)["payment_methods"]
        for payment in payments:
            method = methods[payment["payment_id"]]
            if method["source"] == "gift_card":
                method["amount"] -= payment["amount"]
            elif method["source"] == "certificate":
                del methods[payment["payment_id"]]

    def _pay_difference(self, reservation: Record, payment_id: str, amount: int) -> None:
        """Settle a difference of price by one payment method of the reservation's user, and note it."""
        method = self.need("users", reservation["user_id"], "user")["payment_methods"].get(payment_id)
        if method is None:
            raise ToolError(f"payment method {payment_id!r} not found", "not_found")
        if method["source"] == "certificate":
            raise ToolError("a certificate pays for new reservations only", "invalid_arguments")
        if method["source"] == "gift_card":
            if method["amount"] < amount:
                raise ToolError(f"the gift card holds {method['amount']:g}, less than {amount}")
            self.db.edit("users", reservation["user_id"])["payment_methods"][payment_id]["amount"] -= amount
        if amount:
            edited = self.db.edit("reservations", reservation["reservation_id"])
            edited["payment_history"].append({"payment_id": payment_id, "amount": amount})
