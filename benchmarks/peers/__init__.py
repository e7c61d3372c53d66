"""Ours beside LeRobot's own pi0.5: `python -m benchmarks.peers --lerobot PATH`.

- lerobot: its model, from a checkout of its source; weights: theirs, copied by name from ours.
- ways: ours and theirs, eager and compiled, asked for the same.
- measure: equal first, then timed in turn.
- figures: medians, ratios and aims; plot: the picture.
"""
