"""The engine and LeRobot's own models: `python -m benchmarks.peers --lerobot PATH`.

- lerobot: the import of a model from a checkout; pi05, smolvla: its families.
- weights: copied by name from the engine's model; both: the two models.
- ways: eager and compiled, on equal inputs; measure: compared, then timed alternately.
- figures: medians, ratios and aims; plot: the picture.
"""
