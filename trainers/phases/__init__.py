"""The phases of a run: warm start, rollouts, credit, updates, evaluation."""
