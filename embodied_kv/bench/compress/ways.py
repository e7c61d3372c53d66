"""The ways that are compared, and the settings of all comparisons, fixed before any result.

Source: VL-Cache, section 5 and appendix A.2: methods, budgets and thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embodied_kv.compress.shares import OWN, SHARES

STREAM, STRICT, ROW = MODES = ('stream', 'strict', 'row')
OURS = 'vl_cache'
WIDE = 'vl_cache_text'  # ours by all text behind the images: the prompt's and the question's
METHODS = (OURS, WIDE, 'streaming_llm', 'h2o', 'snapkv', 'pyramidkv', 'zipcache', 'random')
EARLY = ('fastv', 'hired')  # tokens are dropped before they are computed
KEEP_RATIOS = (0.01, 0.05, 0.1, 0.2, 0.4)  # and 1: the whole
TENTH = 0.1  # what the verdict is on
P, SWEPT = 0.01, (1e-4, 1e-3, 1e-1)  # the threshold, and what else it is set to


@dataclass(frozen=True)
class Way:
    """A method at one keep ratio; p: its threshold.

    by: `stream`, as served: the question is appended to the whole prefix, scores it, and the
    answer's first token still reads the whole. `strict`: the same is kept, but the first token
    reads what is kept, as all others do: the question's last token is appended again. `row`: the
    prompt's text scores, and the question is appended to what is kept. By row the two of ours are
    one. shares: as `Method.shares`. after: tokens of the answer, from the whole, that score beside
    the question; then `stream` reads the whole for one more, and `strict` appends the last of them
    again. By row there are none.
    """

    method: str
    keep_ratio: float
    by: str
    p: float = P
    shares: str = OWN
    after: int = 0


def all_ways(
    keep_ratios: Sequence[float] = KEEP_RATIOS, modes: Sequence[str] = MODES, sweep: bool = True
) -> list[Way]:
    """Every method at every keep ratio in every mode; sweep: ours at the other thresholds, too.

    Methods that drop tokens before they are computed never have a whole prefix to be asked.
    """
    ways = []
    for by in modes:
        methods = METHODS if by == STREAM else (*METHODS, *EARLY)
        ways += [Way(method, keep_ratio, by) for method in methods for keep_ratio in keep_ratios]
        if sweep:
            ways += [Way(OURS, keep_ratio, by, p) for p in SWEPT for keep_ratio in keep_ratios]
    return ways


SCORES = (OURS, WIDE, 'h2o', 'snapkv', 'zipcache', 'streaming_llm', 'random')
AFTER = (0, 1, 2, 3, 4)  # tokens of an answer
UNSCORED = ('streaming_llm', 'random')  # all layers are as dense, whatever of the answer is seen


def grid(keep_ratio: float = TENTH) -> list[Way]:
    """Every score with every way to share a budget, as served and strict, after n tokens."""
    return [
        Way(score, keep_ratio, by, shares=shares, after=after)
        for by in (STREAM, STRICT)
        for score in SCORES
        for shares in (SHARES if score not in UNSCORED else ('equal', 'pyramid'))
        for after in AFTER
    ]
