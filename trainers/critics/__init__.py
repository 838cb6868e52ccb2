"""Networks that map the policy's hidden states to a number: critics, and SPA's progress estimator."""
