"""Programs that run inside a sandbox: sent as source text, so Python 3.9 and its standard library must do."""
