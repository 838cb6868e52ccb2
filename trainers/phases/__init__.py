"""The phases of a run that change weights: the warm start, a step's updates, learning rates."""
