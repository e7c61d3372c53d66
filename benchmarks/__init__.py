"""Benchmarks: `python -m benchmarks.NAME`, and --help; `... benchmarks` runs all.

A folder per subject, whose `__main__` is the command; a subject of one file is a module. Each
prints a table, then its figures as one JSON line.
- frame, parts: what one KV cache saves in a frame, and what each phase takes alone.
- deadline: actions in time, beside language that never ends.
- capsule: state that is restored beside state that is computed again.
- compress: metrics, quality, needle and speed of compressed prefixes; its grid takes hours and is
  no part of all.
- memory: trace, ablations, timeline and judge of KV that is kept and reused.
- fleet: many robots on one engine, simulated; fleet.serving: through a policy
  server; fleet.profile: what a batch costs. horizon: how far to execute a chunk.
- peers: ours beside LeRobot's own pi0.5, which `--lerobot` names; no part of all.
- parity: the model against recorded numbers of the references; no part of all.
- latency: chunks that come late, in five ways to go on.
- whole: missions of a fleet with all parts, and without each: the leave-one-out table.
- common: what they share.
"""
