"""Which positions of a prefix are kept: methods over attention statistics and positions.

Knows statistics, budgets and positions. Does not know a model, an arena or an engine: statistics
come in as tensors, positions go out.
"""
