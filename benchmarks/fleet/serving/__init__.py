"""A fleet through a policy server's sessions: `python -m benchmarks.fleet.serving`.

- measure: which fleets are run, in which ways; figures: rows, pairs, tables and the plot.
- open_fleet: the same with tasks that arrive, of a simulated workload.
- world: the tabletops.
- lockstep: the sessions of a policy server in virtual time; robot: its robots; stepped: its
  server; schedule: the virtual time; speech: the language work.
"""
