"""Long runs with injected failures: `python -m benchmarks.soak`.

- run: frames and other operations from a seed, and the checks of all invariants ("laws").
- world: the engine and the services around it. operations: the operations and their weights;
  frames, language, capsules, memories, pools: their implementation.
- faults: calls that fail now and then; boundaries: which calls these are.
- ledger: futures, streams and outcomes of operations; outcome: how an operation may end without
  being done. checks: the invariants; resident: memory of the process.
"""
