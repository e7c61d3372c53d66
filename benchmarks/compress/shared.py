"""The smallest keep ratio at which one compressed copy per frame answers as the whole prefix does.

A copy that the prompt's text chooses (`compression_queries: row`) is shared by all questions about
its frame. A copy that a question chooses (`text`) is made for each stream, and the whole prefix
stays until then. Both answer the same questions from the same prefill. A keep ratio is enough if
the one-sided 95% bound of the paired difference to the whole prefix is above -2 points (`tally`).
Settings are here and in `ways`; none depends on a result.

Physics: of a prefix of W bytes, a shared copy takes r W, however many questions there are, and
copies of streams take 0.1 s W for s streams: at r = 0.4 sharing takes less from 5 streams on.
"""

from __future__ import annotations

import argparse

from benchmarks.common.command import command
from benchmarks.compress.policy import add_policy, load, settings, show
from benchmarks.compress.quality import collect
from benchmarks.compress.tally import verdict
from benchmarks.compress.ways import ROW, STREAM, TENTH, Way, default

FRAMES = 120
KEEP_RATIOS = 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75
STREAMS = 1, 4, 8  # questions about a frame


def ways() -> list[Way]:
    """Return a shared copy at each keep ratio, by the default method and by position."""
    shared = [default(ROW, ratio) for ratio in KEEP_RATIOS]
    by_position = [Way('streaming_llm', ratio, ROW) for ratio in KEEP_RATIOS]
    return [*shared, *by_position, default(STREAM)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    add_policy(parser, FRAMES)


def run(args: argparse.Namespace) -> dict:
    """Answer all questions, print the table, and return all figures."""
    tally = collect(load(args), ways(), args.frames)
    rows = []
    for way in ways():
        found = verdict(tally, way)
        share = way.keep_ratio
        rows.append(
            dict(
                copy=f'{way.by}: {way.label}',
                keep_ratio=share,
                right=100 * found['ours'],
                difference=100 * found['difference'],
                bound=100 * found['bound'],
                enough=found['non_inferior'],
                **{f'KV of {count}': share * (1 if way.by == ROW else count) for count in STREAMS},
            )
        )
    enough = [r['keep_ratio'] for r in rows if r['enough'] and r['copy'].startswith(ROW)]
    if not args.json:
        show('shared', args, {f'right answers, whole {100 * tally.of(None).mean():.1f}%': rows})
    return settings(args) | dict(
        questions=len(tally.kinds), smallest=min(enough, default=None), tenth=TENTH, rows=rows
    )


main = command('compress.shared', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
