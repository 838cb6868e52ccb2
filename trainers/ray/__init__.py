"""A run's environments and engines on a Ray cluster; only what is imported from here needs the extra ``ray``."""
