"""Steps of training loops, their phases, and the ranks that make them together."""
