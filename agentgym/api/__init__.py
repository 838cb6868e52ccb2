"""Functions for scripts and notebooks: evaluate, collect rollouts, train. The commands call them too."""
