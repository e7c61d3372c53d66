"""Compressed prefixes beside whole ones: `python -m benchmarks.compress.PART`.

Parts, each a command:
- metrics: what attention says about compression: sparsity, hit rates, modalities.
- quality: right answers by method and budget, and actions in closed loop.
- needle: codes to be read off a long synthetic page.
- grid: scores, ways to share a budget, and answer tokens seen, in all combinations.
- speed: time and bytes, at a tenth of the cache.

What they stand on, from below:
- ways: the methods, budgets and modes that are compared.
- scores: exact attention statistics, by any queries of a prefix and a question.
- early: prefills that drop tokens before they are computed.
- kept: what each way keeps of a frame.
- cache: one prefill in all ways at once, and what is said from each.
- questions: unseen frames, and the truth about them.
- tally: right answers, counted by way.
- loop: closed loop.
- policy: which policy, and how its figures are shown.
- plots: pictures.
"""
