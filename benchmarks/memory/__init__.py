"""Robot memory stored as KV, and the methods to reuse it: `python -m benchmarks.memory.PART`.

Parts, each a command:
- trace: an embodied trace, with right and stale answers, and time to the first token.
- ablations: KEEP without each of its ideas, with other blocks and other ratios.
- timeline: loads during computation, by load policy, measured and predicted.
- judge: KEEP and CacheBlend at equal tokens on chains across segments; judge_ask: one problem;
  judge_batch: many at once; judge_ways: the fixed settings; judge_tables: rates and differences.
- records: the same methods on records of eight tokens, with a judge of eight layers.
- churn: updates between plans and the cost of loads, predicted and measured.
- construction: KEEP without groups, hops or segments, in accuracy.
- record_groups: KEEP and CacheBlend over groups of records, with the judge of eight layers.

Modules that the parts use, from the bottom up:
- settings: all numbers, from settings.yaml, fixed before any result.
- story: the household, its updates and questions.
- blocks: memory in fixed blocks, as the baselines store it.
- load_policies: how far ahead KV is loaded; invalidation: KV that updates cost each construction.
- reuse_variants: CacheBlend, EPIC and other settings of KEEP, which the node does not have.
- ways: methods of reuse over constructions of memory.
- grouped: groups by the node's encoder or by true links.
- asking: runs all ways through the same stories.
- floor: the physical lower bound of a plan's time.
- tables, plots: rows and figures.
"""
