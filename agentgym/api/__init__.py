"""What scripts and notebooks call: evaluate, collect rollouts, train. The commands call it too."""
