"""The HTML run report and trace viewer."""

from agentgym.report.page import write_report

__all__ = ["write_report"]
