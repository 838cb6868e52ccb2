"""MiniWoB++ in a real browser: its pages, what is hidden from the agent, and scripted policies."""
