"""The phone of tau2-bench's telecom domain: its state, its search for a network, and its working functions.

The rules are those of ``src/tau2/domains/telecom/user_tools.py`` and ``user_data_model.py`` of
sierra-research/tau2-bench (MIT), and are compared with them by ``benchmarks/tau2/parity.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentgym.canonical import packaged
from agentgym.envs.domains.database import Record
from agentgym.envs.domains.toolkit import Toolkit

MODES: Final = {"4g_5g_preferred": "5G", "4g_only": "4G", "3g_only": "3G", "2g_only": "2G"}
"""Network modes, and the technology that each connects to."""
_SPEEDS: Final = {"2G": (0.1, 0.4), "3G": (1.0, 5.0), "4G": (10.0, 100.0), "5G": (50.0, 500.0)}
"""Range of megabits a second."""
_SHARES: Final = {"poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
_WORDS: Final = ((1, "Very Poor"), (5, "Poor"), (25, "Fair"), (100, "Good"), (float("inf"), "Excellent"))
_SLOW_VPN, _DATA_SAVER = 0.1, 0.2

_FILE: Final[Mapping[str, Record]] = packaged(__package__, "phone.json")
APN, VPN, DEVICE, SURROUNDINGS = (_FILE[name] for name in ("apn", "vpn", "device", "surroundings"))
"""Records of a phone that nothing has changed."""
PHONE, AROUND = "phone", "surroundings"
"""Tables of one record each, whose key is the table's name."""


def phone_tables(user_db: Record) -> dict[str, dict[str, Record]]:
    """Return the tables of a phone as ``user_db.toml`` describes it; omitted fields have their defaults."""
    device = {**DEVICE, **user_db.get("device", {})}
    device["active_apn_settings"] = {**APN, **device["active_apn_settings"]}
    return {PHONE: {PHONE: device}, AROUND: {AROUND: {**SURROUNDINGS, **user_db.get("surroundings", {})}}}


class Phone(Toolkit):
    """A phone over the database: the state, without the user's tools."""

    @property
    def device(self) -> Record:
        """The phone's record, which callers must not change."""
        return self.need(PHONE, PHONE, "phone")

    @property
    def around(self) -> Record:
        """The record of the phone's surroundings, which callers must not change."""
        return self.need(AROUND, AROUND, "surroundings")

    def change(self, **values: Any) -> None:
        """Set fields of the phone's record."""
        self.db.edit(PHONE, PHONE).update(values)

    def change_around(self, **values: Any) -> None:
        """Set fields of the surroundings' record."""
        self.db.edit(AROUND, AROUND).update(values)

    # --------------------------------------------------------------------------------------------------- what works

    @property
    def sim_status(self) -> str:
        """``missing``, or the card's status."""
        return "missing" if self.device["sim_card_missing"] else str(self.device["sim_card_status"])

    def search_network(self) -> None:
        """Connect to the network that SIM card, mode, line and settings allow."""
        device, around = self.device, self.around
        technology = MODES[device["network_mode_preference"]]
        signals = around["signal_strength"]
        if technology == "5G" and signals.get("5G", "none") == "none":
            technology = "4G"
        can_connect = (
            self.sim_status == "active"
            and not device["airplane_mode"]
            and device["active_apn_settings"]["apn_name"] != "broken"
            and around["line_active"]
        )
        self.change(
            network_connection_status="connected" if can_connect else "no_service",
            network_technology_connected=technology if can_connect else "none",
            network_signal_strength=signals.get(technology, "none") if can_connect else "none",
        )

    def has_data(self) -> bool:
        """Return True if mobile data works."""
        device, around = self.device, self.around
        if device["airplane_mode"] or device["network_signal_strength"] == "none":
            return False
        if device["network_connection_status"] == "no_service":
            return False
        if around["is_abroad"] and not (device["roaming_enabled"] and around["roaming_allowed"]):
            return False
        return bool(device["data_enabled"]) and not around["mobile_data_usage_exceeded"]

    def speed(self) -> tuple[float, str] | None:
        """Return megabits a second and a word for them; None without mobile data."""
        if not self.has_data():
            return None
        device = self.device
        is_slowed = device["vpn_connected"] and (device["vpn_details"] or {}).get("server_performance") == "poor"
        factor = (_SLOW_VPN if is_slowed else 1.0) * (_DATA_SAVER if device["data_saver_mode"] else 1.0)
        low, high = _SPEEDS.get(device["network_technology_connected"], (0.0, 0.0))
        megabits = round((low + high) / 2.0 * _SHARES.get(device["network_signal_strength"], 0.0) * factor, 2)
        return megabits, next(word for limit, word in _WORDS if megabits < limit)

    def has_mms(self) -> bool:
        """Return True if picture messages can be sent."""
        device = self.device
        if not self.has_data() or device["network_technology_connected"] == "2G":
            return False
        if device["wifi_calling_enabled"] and device["wifi_calling_mms_over_wifi"]:
            return False
        granted = device["app_statuses"].get("messaging", {}).get("permissions", {})
        return device["active_apn_settings"]["mmsc_url"] is not None and granted.get("storage") and granted.get("sms")

    # ------------------------------------------------------------------------------------------- switches and parts

    def set_airplane_mode(self, *, is_on: bool) -> None:
        """Turn airplane mode on or off. Both disconnect Wi-Fi, and turning it on disconnects a VPN."""
        device = self.device
        if is_on or device["wifi_enabled"]:
            self.change(wifi_connected=False, wifi_ssid=None, wifi_signal_strength="none")
        if is_on and device["vpn_connected"]:
            self.change(vpn_connected=False, vpn_details=None)
        self.change(airplane_mode=is_on)
        self.search_network()

    def set_permission(self, app_name: str, permission: str, *, is_granted: bool) -> str | None:
        """Grant or remove a permission of an app; return what is wrong if there is no such app or permission."""
        app = self.device["app_statuses"].get(app_name)
        if app is None:
            return f"there is no app {app_name!r} on this phone"
        known = app["permissions"]
        if permission not in known:
            return f"the app {app_name} has no permission {permission!r}; it has {', '.join(known)}"
        apps = self.device["app_statuses"]
        changed = {**app, "permissions": {**known, permission: is_granted}}
        self.change(app_statuses={**apps, app_name: changed})
        return None

    def change_apn(self, **values: Any) -> None:
        """Set fields of the access point's settings."""
        self.change(active_apn_settings={**self.device["active_apn_settings"], **values})
