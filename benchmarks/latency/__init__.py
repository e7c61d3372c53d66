"""Latency: success, time and smoothness of an arm whose chunks arrive late, by chunking method."""
