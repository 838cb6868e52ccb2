"""Engines that sample completions for the trainers."""
