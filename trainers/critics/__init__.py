"""Networks that read a number off the policy's states: critics, and SPA's progress estimator."""
