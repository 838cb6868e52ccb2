"""What a training run consists of: its folder, environments, model, policy and cluster."""
