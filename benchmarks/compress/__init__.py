"""Compressed prefixes compared with whole ones: `python -m benchmarks.compress.PART`.

Parts, each a command:
- metrics: attention statistics about compression: sparsity, hit rates, modalities.
- quality: right answers by method and budget, and actions in closed loop.
- needle: codes to be read from a long synthetic page.
- lists: long answers, with all codes of such a page.
- shared: the smallest keep ratio at which one copy per frame answers as the whole prefix.
- compiled: time of compiled steps with compressed streams.
- grid: all combinations of scores, budget sharing, and answer tokens seen before the choice.
- speed: time and bytes, at a tenth of the cache.

Modules that they use, bottom up:
- ways: the methods, budgets and modes that are compared.
- scores: exact attention statistics, by any queries of a prefix and a question.
- fastv, hired: the rules of two methods. formulas: VL-Cache's measures of a selection.
- early: prefills that drop tokens before they are computed.
- kept: the positions of a frame that each way keeps.
- cache: one prefill in all ways at once, and the answers of each way.
- questions: unseen frames, and the truth about them.
- tally: right answers, counted by way.
- loop: episodes in closed loop.
- policy: the policy that is used, and how its figures are shown.
- plots: the plots.
"""
