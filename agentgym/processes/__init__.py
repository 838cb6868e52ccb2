"""Processes that end with the one that started them, and a loaded program that forks for each of its jobs."""
