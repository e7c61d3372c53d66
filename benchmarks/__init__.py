"""Benchmarks: `python -m benchmarks.NAME` runs one (see --help), `python -m benchmarks` runs all.

A subject is a folder whose `__main__` is the command, or a single module. Each benchmark prints a
table, then its figures as one JSON line.
- frame, parts: what one shared KV cache saves in a frame, and the time of each phase alone.
- deadline: actions on time under an endless language load.
- capsule: restored state compared with recomputed state.
- compress: metrics, quality, needle and speed of compressed prefixes. Its grid takes hours and is
  not run by `python -m benchmarks`.
- memory: trace, ablations, timeline and judge of KV that is stored and reused.
- fleet: many robots on one engine, simulated; fleet.serving: through a policy server;
  fleet.profile: the cost of a batch. horizon: how far to execute a chunk.
- peers: our models compared with LeRobot's own (checkout: `--lerobot`). Not run by `python -m
  benchmarks`.
- latency: chunks that arrive late, and five ways to continue.
- whole: missions of a fleet with all parts, and without each one: the leave-one-out table.
- common: code that the benchmarks share.
"""
