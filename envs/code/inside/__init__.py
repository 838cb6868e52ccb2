"""Programs that run inside a grading sandbox, sent as source text. They need only Python 3.9 without packages."""
