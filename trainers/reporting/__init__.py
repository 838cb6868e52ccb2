"""Numbers that a run writes: metrics, totals over updates, parts that change nothing."""
