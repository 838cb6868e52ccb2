"""Parts of a training run: its folder, environments, model, policy and cluster."""
