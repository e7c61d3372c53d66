"""Latency: how well, how fast and how smoothly an arm acts when its chunks come late, by way."""
