"""A run's environments, engines and ranks on a Ray cluster; only what is imported from here needs the extra ``ray``."""
