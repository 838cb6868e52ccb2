"""Programs that tools run inside a sandbox. They are sent as text and need only Python 3.9 and its standard library."""
