"""Training on several ranks: process groups, sharded models and checkpoints."""
