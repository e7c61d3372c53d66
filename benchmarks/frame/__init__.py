"""One frame, done in several ways: `python -m benchmarks.frame`.

- measure: the grid, and each way at each point.
- modes: the ways; copying: the one that copies its caches.
- predict: what a frame should cost by its parts.
- plot: the picture.
"""
