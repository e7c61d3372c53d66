"""Code that the benchmarks share.

- command: the command line, and where figures go.
- report: the machine, tables, the JSON line; pictures: PNG files.
- scene: frames and live streams without a camera.
- physics: minimum operations and bytes of a phase; clock: times of calls in turn, and the ceilings
  of the machine.
- paired: the difference of two ways over the same questions; ratio: how many times as long one way
  takes as another, over the same rounds.
- declared_writes: checks that a computation writes only the memory that it declares.
- hostile_device: an emulated device that is late, unclean and unreliable, for tests and the soak.
"""
