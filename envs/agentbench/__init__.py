"""AgentBench's database tasks."""
