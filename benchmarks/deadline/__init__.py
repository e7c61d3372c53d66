"""Actions in time beside endless language: `python -m benchmarks.deadline`.

- serve: one run; plot: the picture.
"""
