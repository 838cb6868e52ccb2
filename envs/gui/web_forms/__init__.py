"""``agentgym/WebForms-v0``: small pages of our own, one for each thing that web pages are made of."""
