"""The first-light programme for a machine with a CUDA card: `tools/gpu`, see docs/gpu.md.

- __main__: the command. stages: what there is to run, in order. runner: one stage, in a process of
  its own. toolchain: what it compiles with. results: the file of them all. summary: its lines and
  tables. None of these imports torch.
- facts, kernels, replay, agree, compiles: what the card is, and whether what runs on it is right.
- threads: whether what three threads make together is what one makes alone.
- real, top, loading: what no other benchmark times; launches: what a profiler counts for them.
- memory: what a model takes on a card, from dimensions alone.
- dry: benches with their plans cut down, for a machine without a card.
"""
