"""Our environments, evaluations and episodes in the forms of other projects."""
