"""Environments whose tasks the policy makes itself: it proposes a task in one role and solves it in the other."""
