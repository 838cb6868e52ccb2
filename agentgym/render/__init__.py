"""Rendering of messages to token ids, and parsing of completions to tool calls."""
