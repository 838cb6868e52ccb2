"""Semi-online training: an agent plays on from its own actions, and an expert's trace puts right what goes wrong."""
