"""Judges: models that grade episodes, as a part of their reward."""
