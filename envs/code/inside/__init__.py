"""Programs that run inside a grading sandbox: sent as text, so they need Python 3.9 and its standard library alone."""
