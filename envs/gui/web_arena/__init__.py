"""WebArena's tasks, on self-hosted sites."""
