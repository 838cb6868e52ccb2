"""Programs that run inside a sandbox, sent as source text. They need only Python 3.9 and its standard library."""
