"""The reports of a run: metrics, totals over updates, and components without effect."""
