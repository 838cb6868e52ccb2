"""What holds for all tests: hypothesis draws the same examples every time, and no test looks at a clock."""

from hypothesis import HealthCheck, settings

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
