"""The trainer: training rows, losses, the training loop, and the inference engines that sample rollouts."""
