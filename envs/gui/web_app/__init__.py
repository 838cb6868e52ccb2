"""Any self-hosted web application as an environment: its start command, a snapshot of its data, a check of its rows."""
