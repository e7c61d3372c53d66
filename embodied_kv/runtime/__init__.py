"""The execution contract: how to compute, independent of what is computed.

It provides named memory that never moves (`buffer`), one computation for each exact shape,
captured if the device can capture and eager otherwise (`graph_cache`), computations that are
compiled ahead of time and kept (`compiled`, `recipes`, `background`), the host's inputs of a step,
sent by one copy (`inputs`), and order and completion on a device (`stream`). It has no policy: it
never decides when to capture, what to keep, or what to do if a shape is missing. Two graphs over
one buffer pass a value from one model to another; a state is saved and restored by copying
buffers.

Source: Execution-State Capsules, section 4.
"""
