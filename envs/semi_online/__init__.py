"""Semi-online training: an agent continues from its own actions, and an expert's trace replaces the wrong ones."""
