"""What benchmarks share.

- command: the command line, and where figures go.
- report: the machine, tables, the JSON line; pictures: PNG files.
- scene: frames and live streams without a camera.
- physics: operations and bytes that a phase cannot do without; clock: time, taken in turn, and
  the machine's ceilings.
- paired: how much two ways differ over the same questions; ratio: how many times as long one
  takes as another, over the same rounds.
- declared_writes: proves that a computation writes only the memory that it declares.
- hostile_device: a device on a CPU that is late, unclean and unreliable, for tests and the soak.
"""
