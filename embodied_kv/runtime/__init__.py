"""The execution contract: how to compute, and nothing about what is computed.

It is: named memory that never moves (`buffer`), named computations over such memory, captured
where the device can and eager elsewhere, behind one interface (`graph`, `capture`, `writes`), one
exact key per shape and a bounded table of the graphs that were captured for them (`variants`),
computations compiled ahead of time and kept (`compiled`), what the host tells a step by one copy
(`inputs`), and order and completion on a device (`stream`).

It is not: policy. It never learns what a session, a robot, a row or a model is, when to capture,
what to keep, or what to do when a shape is missing. Two graphs over one buffer are all that it
takes to hand a value from one model to another; a state is saved and restored by copying buffers.

Source: Execution-State Capsules, section 4.
"""
