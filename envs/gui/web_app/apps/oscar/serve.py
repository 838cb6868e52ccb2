"""Serves the shop: ``serve.py PORT``."""

import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":  # --insecure: Django serves the style sheets itself
    execute_from_command_line(["manage", "runserver", f"127.0.0.1:{sys.argv[1]}", "--noreload", "--insecure"])
