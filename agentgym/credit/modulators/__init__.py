"""Modulators change the advantages of an estimator. They run in the order of the configuration."""
