"""WebArena's tasks, on sites that one hosts."""
