"""Memory as KV, kept and reused in each way: `python -m benchmarks.memory.PART`.

Parts, each a command:
- trace: an embodied trace, with right and stale answers, and time to the first token.
- ablations: KEEP without each of its ideas, other blocks, other ratios.
- timeline: loads beside computation, by policy, measured and foretold.
- judge: KEEP and CacheBlend at equal tokens on chains across segments; judge_ask: one problem;
  judge_batch: many at once; judge_ways: what is fixed; judge_tables: rates and differences.
- records: the same ways on records of eight tokens, by a judge of eight layers.
- churn: updates between plans and what loads cost, foretold and measured.
- construction: KEEP without groups, hops or segments, in accuracy.

What they stand on, from below:
- settings: all numbers, from settings.yaml, fixed before any result.
- story: the household, its updates and questions.
- blocks: memory in fixed blocks, as the baselines keep it.
- load_policies: how far ahead KV is loaded; invalidation: KV that updates cost each construction.
- reuse_variants: CacheBlend, EPIC and other settings of KEEP, which the node does not have.
- ways: methods of reuse over constructions of memory.
- asking: all ways through the same stories.
- floor: what is physically the least.
- tables, plots: rows and pictures.
"""
