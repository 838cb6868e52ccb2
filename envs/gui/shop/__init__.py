"""The shop of ``envs/webshop`` as a web application, for agents that drive a browser."""
