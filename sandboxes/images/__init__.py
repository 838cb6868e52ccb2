"""The base image of the docker sandbox: its packages and two ways to build it."""

DEFAULT_IMAGE = "agentgym-sandbox:1"
