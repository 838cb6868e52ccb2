"""Programs that tools run inside a sandbox: sent as text, so they need Python 3.9 and its standard library alone."""
