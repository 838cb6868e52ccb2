"""A run's environments, engines and ranks on a Ray cluster. Only the modules of this package need the extra ``ray``."""
