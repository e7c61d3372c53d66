"""Many robots on one engine: `python -m benchmarks.fleet`, simulated.

- calibrate: `python -m benchmarks.fleet.calibrate`, which test beds are valid.
- subject: what is served; runs: the experiments; measure: all of them, on every subject.
- compare: savings, tables, aims; decisions: the cost of a decision.
- trace_reader: reads the executions that a policy server wrote, to replay them.
- paper: what Kairos reports; plots: the plots.
- charged: `python -m benchmarks.fleet.charged`, horizons charged with the success that they cost;
  success: the measured rates.
- profile: `python -m benchmarks.fleet.profile`, the cost of a batch of robots.
- remembering: `python -m benchmarks.fleet.remembering`, robots that read memory rows.
- serving: `python -m benchmarks.fleet.serving`, the sessions of a policy server, in virtual time.
- speech: `python -m benchmarks.fleet.speech`, the same with language.
"""
