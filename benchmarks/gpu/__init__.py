"""Tests and benchmarks for a machine with a CUDA card: `tools/gpu`, see docs/gpu.md.

- __main__: the command. stages: what there is to run, in order. runner: one stage, in a process of
  its own. toolchain: what it compiles with. results: the file of them all. summary: its lines and
  tables. None of these imports torch.
- facts, kernels, replay, agree, compiles: facts about the card, and whether its results are right.
- threads: whether three threads together produce the bytes that one thread produces alone.
- real, top, loading: times that no other benchmark measures; launches: what a profiler counts for
  them.
- memory: the memory that a model needs on a card, from dimensions alone.
- dry: benchmarks with their plans cut down, for a machine without a card.
"""
