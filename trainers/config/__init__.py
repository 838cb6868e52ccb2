"""Configuration of a training run: one frozen dataclass per stage, overrides, and the copy saved with each run."""
