"""Actions in time beside endless language: `python -m embodied_kv.bench.deadline`.

- serve: one run; plot: the picture.
"""
