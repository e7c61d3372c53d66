"""Long runs with failures made on purpose: `python -m benchmarks.soak`.

- run: frames and other operations by a seed, from the first frame to the last law.
- world: the engine and what stands around it. operations: what may happen, and how often; frames,
  language, capsules, memories: how it is done.
- faults: calls that fail now and then; boundaries: which calls these are.
- ledger: what was promised, and what came of it; outcome: how it may end. checks: the laws;
  resident: memory of the process.
"""
