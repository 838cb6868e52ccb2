"""Messages to token ids, and completions to tool calls."""
