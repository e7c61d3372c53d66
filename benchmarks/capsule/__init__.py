"""Restored state compared with recomputed state: `python -m benchmarks.capsule`.

- measure: the amount of measurement, and all figures.
- planner: time to the first token, and working sets. planner_rows: the row of the memory planner.
- policy: time to the first action; the chunk of a replayed frame is compared with the live one.
- prefix_cache: `python -m benchmarks.capsule.prefix_cache`, capsules against an automatic prefix
  cache; blocks: this cache; attention: a planner that both can serve.
- sentences: snapshots of a session that remembers many sentences.
- figures: percentiles, bandwidths, equal bytes. plot: the plot.
"""
