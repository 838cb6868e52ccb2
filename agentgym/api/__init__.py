"""Functions for scripts and notebooks: evaluate, collect rollouts, train. The command line uses them, too."""
