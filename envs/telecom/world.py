"""Changes to a phone before a task of tau2-bench's telecom domain, and checks of it at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from agentgym.envs.telecom.phone import VPN, Phone


def _turn_airplane_mode_on(phone: Phone) -> None:
    if phone.device["airplane_mode"]:  # tau2 toggles until it is on
        phone.set_airplane_mode(is_on=False)
    phone.set_airplane_mode(is_on=True)


def _turn_airplane_mode_off(phone: Phone) -> None:
    if not phone.device["airplane_mode"]:
        phone.set_airplane_mode(is_on=True)
    phone.set_airplane_mode(is_on=False)


def _change(is_searched: bool, **values: Any) -> Callable[[Phone], None]:
    def change(phone: Phone) -> None:
        phone.change(**values)
        if is_searched:
            phone.search_network()

    return change


def _lock_sim_card(phone: Phone, mode: str) -> None:
    phone.change(sim_card_status=f"locked_{mode}")
    phone.search_network()


def _break_apn_settings(phone: Phone) -> None:
    phone.change_apn(apn_name="broken")
    phone.search_network()


def _break_vpn(phone: Phone) -> None:
    if not phone.device["vpn_connected"]:
        phone.change(vpn_connected=True, vpn_details=dict(VPN))
    phone.change(vpn_details={**(phone.device["vpn_details"] or VPN), "server_performance": "poor"})


def _set_wifi_calling(phone: Phone, enabled: bool, mms_over_wifi: bool | None = None) -> None:
    phone.change(wifi_calling_enabled=enabled)
    if mms_over_wifi is not None:
        phone.change(wifi_calling_mms_over_wifi=mms_over_wifi)


def _set_network_mode_preference(phone: Phone, mode: str) -> None:
    phone.change(network_mode_preference=mode)
    phone.search_network()


PHONE_SETUP: Final[Mapping[str, Callable[..., object]]] = {
    "set_user_info": lambda phone, name, phone_number: phone.change_around(name=name, phone_number=phone_number),
    "set_user_location": lambda phone, abroad: phone.change_around(is_abroad=abroad),
    "simulate_network_search": Phone.search_network,
    "set_network_mode_preference": _set_network_mode_preference,
    "turn_airplane_mode_on": _turn_airplane_mode_on,
    "turn_airplane_mode_off": _turn_airplane_mode_off,
    "turn_data_on": _change(False, data_enabled=True),
    "turn_data_off": _change(True, data_enabled=False),
    "turn_roaming_on": _change(True, roaming_enabled=True),
    "turn_roaming_off": _change(True, roaming_enabled=False),
    "turn_data_saver_mode_on": _change(False, data_saver_mode=True),
    "turn_data_saver_mode_off": _change(False, data_saver_mode=False),
    "unseat_sim_card": _change(True, sim_card_missing=True),
    "lock_sim_card": _lock_sim_card,
    "break_apn_settings": _break_apn_settings,
    "break_apn_mms_setting": lambda phone: phone.change_apn(mmsc_url=None),
    "break_vpn": _break_vpn,
    "set_wifi_calling": _set_wifi_calling,
    "remove_app_permission": lambda phone, app_name, permission: phone.set_permission(
        app_name, permission.lower(), is_granted=False
    ),
}
"""Changes to the phone, by their names in ``initialization_actions``."""


def _is_fast_enough(phone: Phone, expected_speed: float, expected_desc: str | None = None) -> bool:
    megabits, word = phone.speed() or (0.0, "No Connection")
    return megabits >= expected_speed and (expected_desc is None or word.lower() == expected_desc.lower())


PHONE_CHECKS: Final[Mapping[str, Callable[..., bool]]] = {
    "assert_airplane_mode_status": lambda phone, expected_status: phone.device["airplane_mode"] == expected_status,
    "assert_service_status": lambda phone, expected_status: (
        phone.device["network_connection_status"] == expected_status
    ),
    "assert_mobile_data_status": lambda phone, expected_status: phone.has_data() == expected_status,
    "assert_mobile_roaming_status": lambda phone, expected_status: phone.device["roaming_enabled"] == expected_status,
    "assert_mobile_data_saver_mode_status": lambda phone, expected_status: (
        phone.device["data_saver_mode"] == expected_status
    ),
    "assert_internet_speed": _is_fast_enough,
    "assert_internet_not_excellent": lambda phone: (phone.speed() or (0.0, ""))[1] != "Excellent",
    "assert_can_send_mms": lambda phone, expected_status: bool(phone.has_mms()) == expected_status,
    "assert_mobile_data_usage_exceeded": lambda phone, expected_status: (
        phone.around["mobile_data_usage_exceeded"] == expected_status
    ),
}
"""Checks of the phone, by their names in ``env_assertions``."""
