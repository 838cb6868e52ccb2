"""The trainer: samples, losses, the loop, and the engines it rolls out with."""
