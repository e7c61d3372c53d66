"""State restored beside state computed again: `python -m benchmarks.capsule`.

- measure: how much is measured, and every figure.
- planner: time to the first token, working sets; policy: time to the first action.
- replay: the chunk of a frozen frame, compared with the live one.
- figures: tails, bandwidths, equal bytes; plot: the picture.
"""
