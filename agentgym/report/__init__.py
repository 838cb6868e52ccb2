"""The HTML report of runs and the trace viewer."""

from agentgym.report.page import write_report

__all__ = ["write_report"]
