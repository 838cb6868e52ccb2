"""The base image of the docker sandbox: what is in it, and the two ways to make it."""

DEFAULT_IMAGE = "agentgym-sandbox:1"
