"""The policy endpoint: agents of any framework talk to the policy as to OpenAI or Anthropic, and are trained."""
