"""The policy endpoint: an HTTP server with OpenAI's and Anthropic's APIs, through which agents of any framework are
trained.
"""
