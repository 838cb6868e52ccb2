"""The environment server (``agentgym serve``), over WebSocket and HTTP."""
