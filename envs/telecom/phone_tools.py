"""The thirty tools with which the user of tau2-bench's telecom domain operates the phone.

Their effects are those of tau2's tools; the texts of their results are our own.
"""

from __future__ import annotations

from typing import Any

from agentgym.envs.telecom.phone import APN, MODES, VPN, Phone
from agentgym.errors import ToolError
from agentgym.tool import tool

_ADVICE = {
    "Very Poor": "Even simple pages may be difficult.",
    "Poor": "Browsing may be slow, and streaming difficult.",
    "Fair": "Good enough for browsing.",
    "Good": "Good enough for nearly everything.",
    "Excellent": "Very fast.",
}


class PhoneTools(Phone):
    """The user's tools."""

    # -------------------------------------------------------------------------------------------------------- looks

    @tool
    def check_status_bar(self) -> str:
        """See the symbols at the top of your phone's screen: signal, network, data, Wi-Fi, VPN, battery."""
        return self._bar()

    @tool
    def check_network_status(self) -> str:
        """See your phone's connections: airplane mode, SIM card, signal, network, mobile data, roaming, Wi-Fi."""
        device = self.device
        lines = [
            f"Airplane mode: {_on(device['airplane_mode'])}",
            f"SIM card: {self.sim_status}",
            f"Cellular connection: {device['network_connection_status']}",
            f"Cellular signal: {device['network_signal_strength']}",
            f"Cellular network: {device['network_technology_connected']}",
            f"Mobile data: {_on(device['data_enabled'])}",
            f"Data roaming: {_on(device['roaming_enabled'])}",
            f"Wi-Fi: {_on(device['wifi_enabled'])}",
            f"Wi-Fi connected: {'yes' if device['wifi_connected'] else 'no'}",
        ]
        return "\n".join(lines + ([f"Wi-Fi network: {device['wifi_ssid']}"] if device["wifi_connected"] else []))

    @tool
    def check_network_mode_preference(self) -> str:
        """See which kind of network your phone prefers."""
        return f"Preferred network mode: {self.device['network_mode_preference']}"

    @tool
    def run_speed_test(self) -> str:
        """Measure how fast your mobile internet is."""
        found = self.speed()
        if found is None:
            return "The speed test failed: no connection."
        return f"Speed test: {found[0]:.2f} Mbps ({found[1]}). {_ADVICE[found[1]]}"

    @tool
    def check_sim_status(self) -> str:
        """See whether your SIM card works, is missing, or is locked."""
        words = {
            "active": "is active and works",
            "missing": "is missing",
            "locked_pin": "is locked with a PIN",
            "locked_puk": "is locked with a PUK",
        }
        return f"The SIM card {words[self.sim_status]}."

    @tool
    def check_data_restriction_status(self) -> str:
        """See whether the data saver limits your data."""
        return f"Data saver: {_on(self.device['data_saver_mode'])}"

    @tool
    def check_apn_settings(self) -> str:
        """See the settings of the access point that your mobile data use."""
        settings = self.device["active_apn_settings"]
        return f"APN name: {settings['apn_name']}\nMMSC URL for picture messages: {settings['mmsc_url'] or 'not set'}"

    @tool
    def check_wifi_status(self) -> str:
        """See whether Wi-Fi is on, and which network you are connected to."""
        device = self.device
        if not device["wifi_enabled"]:
            return "Wi-Fi is off."
        if not device["wifi_connected"]:
            return "Wi-Fi is on and not connected."
        return f"Wi-Fi is on and connected to {device['wifi_ssid']}, signal {device['wifi_signal_strength']}."

    @tool
    def check_wifi_calling_status(self) -> str:
        """See whether Wi-Fi calling is on."""
        return f"Wi-Fi calling: {_on(self.device['wifi_calling_enabled'])}"

    @tool
    def check_vpn_status(self) -> str:
        """See whether you are connected to a VPN, and how good its server is."""
        device = self.device
        if not device["vpn_connected"]:
            return "VPN: set to on, not connected" if device["vpn_enabled_setting"] else "VPN: off"
        details = device["vpn_details"] or {}
        return "VPN: connected; " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in details.items())

    @tool
    def check_installed_apps(self) -> str:
        """See which apps are on your phone."""
        return f"Apps: {', '.join(self.device['app_statuses'])}"

    @tool
    def check_app_status(self, app_name: str) -> str:
        """See the details of an app.

        Args:
            app_name: Name of the app, such as messaging.
        """
        return f"App {app_name}. {self._permissions(app_name)}"

    @tool
    def check_app_permissions(self, app_name: str) -> str:
        """See what an app is allowed to use.

        Args:
            app_name: Name of the app, such as messaging.
        """
        return self._permissions(app_name)

    @tool
    def can_send_mms(self) -> str:
        """See whether your messaging app can send picture messages."""
        return f"The messaging app {'can' if self.has_mms() else 'cannot'} send picture messages (MMS)."

    @tool
    def check_payment_request(self) -> str:
        """See whether you have been asked to pay a bill."""
        request = self.around["payment_request"]
        if request is None:
            return "You have not been asked to pay."
        return f"You have been asked to pay bill {request['bill_id']}, {request['amount_due']} dollars."

    # ------------------------------------------------------------------------------------------------------ changes

    @tool
    def set_network_mode_preference(self, mode: str) -> str:
        """Choose which kind of network your phone prefers.

        Args:
            mode: 4g_5g_preferred, 4g_only, 3g_only or 2g_only.
        """
        if mode not in MODES:
            return self._and_bar(f"There is no mode {mode!r}; choose one of {', '.join(MODES)}")
        self.change(network_mode_preference=mode)
        self.search_network()
        return self._and_bar(f"Preferred network mode: {mode}")

    @tool
    def toggle_airplane_mode(self) -> str:
        """Turn airplane mode on if it is off, and off if it is on."""
        self.set_airplane_mode(is_on=not self.device["airplane_mode"])
        return self._and_bar(f"Airplane mode is now {_on(self.device['airplane_mode'])}")

    @tool
    def reseat_sim_card(self) -> str:
        """Take your SIM card out and put it in again."""
        self.change(sim_card_missing=False)
        self.search_network()
        return self._and_bar("The SIM card was put in again")

    @tool
    def toggle_data(self) -> str:
        """Turn mobile data on if they are off, and off if they are on."""
        self.change(data_enabled=not self.device["data_enabled"])
        self.search_network()
        return self._and_bar(f"Mobile data are now {_on(self.device['data_enabled'])}")

    @tool
    def toggle_roaming(self) -> str:
        """Turn data roaming on if it is off, and off if it is on."""
        self.change(roaming_enabled=not self.device["roaming_enabled"])
        self.search_network()
        return self._and_bar(f"Data roaming is now {_on(self.device['roaming_enabled'])}")

    @tool
    def toggle_data_saver_mode(self) -> str:
        """Turn the data saver on if it is off, and off if it is on."""
        self.change(data_saver_mode=not self.device["data_saver_mode"])
        return self._and_bar(f"The data saver is now {_on(self.device['data_saver_mode'])}")

    @tool
    def set_apn_settings(self, apn_settings: dict[str, Any]) -> str:
        """Set the access point that your mobile data use.

        Args:
            apn_settings: apn_name (internet or broken), mms_apn, mmsc_url, mms_proxy, mms_port.
        """
        unknown = sorted(set(apn_settings) - set(APN))
        if unknown or apn_settings.get("apn_name", "internet") not in ("internet", "broken"):
            raise ToolError(f"settings are {', '.join(APN)}, and apn_name is internet or broken", "invalid_arguments")
        self.change(active_apn_settings={**APN, **apn_settings})
        self.search_network()
        return self._and_bar("The access point was set")

    @tool
    def reset_apn_settings(self) -> str:
        """Set the access point back to what it was when the phone was new, from the next restart on."""
        self.change_apn(reset_at_reboot=True)
        self.search_network()
        return self._and_bar("The access point will be reset at the next restart")

    @tool
    def toggle_wifi(self) -> str:
        """Turn Wi-Fi on if it is off, and off if it is on."""
        device = self.device
        if device["airplane_mode"]:
            return self._and_bar("Wi-Fi cannot be changed in airplane mode")
        self.change(wifi_enabled=not device["wifi_enabled"])
        if not self.device["wifi_enabled"]:
            self.change(wifi_connected=False, wifi_ssid=None, wifi_signal_strength="none")
        return self._and_bar(f"Wi-Fi is now {_on(self.device['wifi_enabled'])}")

    @tool
    def toggle_wifi_calling(self) -> str:
        """Turn Wi-Fi calling on if it is off, and off if it is on."""
        self.change(wifi_calling_enabled=not self.device["wifi_calling_enabled"])
        return self._and_bar(f"Wi-Fi calling is now {_on(self.device['wifi_calling_enabled'])}")

    @tool
    def connect_vpn(self) -> str:
        """Connect to your VPN."""
        if self.device["vpn_connected"]:
            return "The VPN is connected already."
        self.change(vpn_connected=True, vpn_details=dict(VPN))
        return self._and_bar("The VPN is connected")

    @tool
    def disconnect_vpn(self) -> str:
        """Disconnect from your VPN."""
        if not self.device["vpn_connected"]:
            return self._and_bar("There is no VPN to disconnect from")
        self.change(vpn_connected=False, vpn_details=None)
        return self._and_bar("The VPN is disconnected")

    @tool
    def grant_app_permission(self, app_name: str, permission: str) -> str:
        """Allow an app to use something.

        Args:
            app_name: Name of the app, such as messaging.
            permission: sms, storage, phone or network.
        """
        wrong = self.set_permission(app_name, permission.lower(), is_granted=True)
        return self._and_bar(f"That did not work: {wrong}" if wrong else f"{app_name} may now use {permission.lower()}")

    @tool
    def reboot_device(self) -> str:
        """Restart your phone."""
        is_reset = self.device["active_apn_settings"]["reset_at_reboot"]
        if is_reset:
            self.change(active_apn_settings=dict(APN))
        self.search_network()
        return self._and_bar(f"The phone was restarted{'; the access point was reset' if is_reset else ''}")

    @tool
    def make_payment(self) -> str:
        """Pay the bill that you have been asked to pay."""
        request = self.around["payment_request"]
        if request is None:
            return "You have not been asked to pay."
        self.change_around(payment_request={**request, "paid": True})
        return f"You have paid bill {request['bill_id']}, {request['amount_due']} dollars."

    # ------------------------------------------------------------------------------------------------------ private

    def _permissions(self, app_name: str) -> str:
        app = self.device["app_statuses"].get(app_name)
        if app is None:
            return f"There is no app {app_name!r} on this phone."
        granted = [name for name, is_granted in app["permissions"].items() if is_granted]
        return f"Granted permissions: {', '.join(granted) or 'none'}."

    def _and_bar(self, said: str) -> str:
        return f"{said}.\n{self._bar()}"

    def _bar(self) -> str:
        device = self.device
        shown = ["Airplane Mode"]
        if not device["airplane_mode"]:
            signal, network = device["network_signal_strength"], device["network_technology_connected"]
            shown = ["No Signal" if signal == "none" else f"Signal {signal}"]
            shown += [network] if network != "none" else []
            has_data = device["data_enabled"] and network != "none"
            shown += ["Data Enabled" if has_data else "Data Disabled"]
            shown += ["Data Saver"] if has_data and device["data_saver_mode"] else []
        if device["wifi_enabled"] and device["wifi_connected"]:
            shown += [f"Wi-Fi {device['wifi_ssid'] or 'on'}"]
        shown += ["VPN"] if device["vpn_connected"] else []
        shown.append(f"Battery {device['battery_level']}%")
        return f"Status bar: {' | '.join(shown)}"


def _on(value: object) -> str:
    return "on" if value else "off"
