"""Actions on time under an endless language load: `python -m benchmarks.deadline`.

- serve: one run; plot: the plot.
"""
