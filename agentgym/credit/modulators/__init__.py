"""Modulators: from advantages to advantages, after the estimator; they stack in the order of the configuration."""
