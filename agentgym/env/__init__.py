"""What an environment is, and the bases to write one from."""
