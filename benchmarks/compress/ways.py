"""The ways that are compared, and the settings of all comparisons, fixed before any result.

Source: VL-Cache, section 5 and appendix A.2: methods, budgets and thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embodied_kv.compress.budget import OWN, SHARES
from embodied_kv.engine_config import EngineConfig

STREAM, STRICT, ROW = MODES = ('stream', 'strict', 'row')
OURS = 'vl_cache'
TEXT = (
    '_text'  # name suffix: scored by all text behind the images, the prompt's and the question's
)
WIDE, POOLED = OURS + TEXT, 'vl_cache_pooled' + TEXT
OWN_METHODS = (OURS, WIDE, POOLED)
METHODS = (*OWN_METHODS, 'streaming_llm', 'h2o', 'snapkv', 'pyramidkv', 'zipcache', 'random')
EARLY = ('fastv', 'hired')  # tokens are dropped before they are computed
KEEP_RATIOS = (0.01, 0.05, 0.1, 0.2, 0.4)  # and 1: the whole
TENTH = 0.1  # keep ratio of the verdict
P, SWEPT = 0.01, (1e-4, 1e-3, 1e-1)  # the threshold, and its other values in a sweep


@dataclass(frozen=True)
class Way:
    """A method at one keep ratio; p: its threshold.

    by: `stream`, as served: the question is appended to the whole prefix and scores it, and the
    answer's first token still reads the whole. `strict`: the same is kept, but the first token
    reads what is kept, as all others do: the question's last token is appended again. `row`: the
    prompt's text scores, and the question is appended to what is kept; TEXT has no effect there.
    shares: as `Method.shares`. after: tokens of the answer, from the whole, that score in addition
    to the question; then `stream` reads the whole for one more, and `strict` appends the last of
    them again. By row there are none.
    """

    method: str
    keep_ratio: float
    by: str
    p: float = P
    shares: str = OWN
    after: int = 0

    @property
    def label(self) -> str:
        """Return the name in tables, which leaves out keep ratio, mode and threshold."""
        shares = '' if self.shares == OWN else f', {self.shares}'
        return self.method + shares + (f', n = {self.after}' if self.after else '')


def default(by: str, keep_ratio: float = TENTH) -> Way:
    """Return the way of an engine with default settings; by row no choice is deferred."""
    shares, after = EngineConfig.compression_layer_budgets, EngineConfig.compression_after_tokens
    method = EngineConfig.compression_method + TEXT
    return Way(method, keep_ratio, by, shares=shares, after=0 if by == ROW else after)


def all_ways(
    keep_ratios: Sequence[float] = KEEP_RATIOS, modes: Sequence[str] = MODES, sweep: bool = True
) -> list[Way]:
    """Return every method at every keep ratio in every mode, ours with equal shares, and default.

    Methods that drop tokens before they are computed are left out of `stream`: they never have a
    whole prefix for a question. sweep: ours at the other thresholds, too.
    """
    ways = []
    for by in modes:
        methods = METHODS if by == STREAM else (*METHODS, *EARLY)
        ways += [Way(method, keep_ratio, by) for method in methods for keep_ratio in keep_ratios]
        for keep_ratio in keep_ratios:
            ways += [Way(method, keep_ratio, by, shares='equal') for method in (OURS, WIDE)]
            ways += [default(by, keep_ratio)] if by != ROW else []
        if sweep:
            ways += [Way(OURS, keep_ratio, by, p) for p in SWEPT for keep_ratio in keep_ratios]
    return ways


def judged() -> list[Way]:
    """Return the ways of the verdicts: ours as in the paper, ours by all text, and default."""
    return [
        way for by in MODES for way in (Way(OURS, TENTH, by), Way(WIDE, TENTH, by), default(by))
    ]


SCORES = (*OWN_METHODS, 'h2o', 'snapkv', 'zipcache', 'streaming_llm', 'random')
AFTER = (0, 1, 2, 3, 4)  # tokens of an answer
UNSCORED = ('streaming_llm', 'random')  # all layers are as dense, whatever part of it is seen


def grid(keep_ratio: float = TENTH) -> list[Way]:
    """Return every score with every budget sharing, as served and strict, after n tokens."""
    return [
        Way(score, keep_ratio, by, shares=shares, after=after)
        for by in (STREAM, STRICT)
        for score in SCORES
        for shares in (SHARES if score not in UNSCORED else ('equal', 'pyramid'))
        for after in AFTER
    ]
