"""One frame, computed in several ways: `python -m benchmarks.frame`.

- measure: the grid, and each way at each point.
- modes: the ways; copying: the one that copies its caches.
- predict: the predicted time of a frame, from its parts.
- plot: the plot.
"""
