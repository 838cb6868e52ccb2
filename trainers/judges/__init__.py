"""Judges: models that grade episodes; the grade is part of the reward."""
