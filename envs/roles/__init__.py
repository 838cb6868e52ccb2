"""One policy in several roles: teams of agents that solve the tasks of another environment."""
