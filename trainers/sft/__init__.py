"""Demonstrations for supervised fine-tuning: from files, recorded runs, a teacher or the environment's oracle."""
