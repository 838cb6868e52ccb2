"""What a training run is: one frozen dataclass per stage, overrides, and the copy saved with each run."""
