"""Tools for agents. The environment gives each tool the sandbox or client that it uses."""
