"""The HTML run report and trace viewer."""
