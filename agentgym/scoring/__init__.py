"""Scores of answers, for environments that grade and for evaluations that rescore."""
