"""Stale content of a row, NaN included, changes no result of a later use of the row."""

import math

import numpy as np
import pytest

WAYS = {
    'uncompressed': {},
    'by stream': dict(language_keep_ratio=0.4, compressed_rows=6, compression_queries='stream'),
    'by row': dict(
        language_keep_ratio=0.4,
        action_keep_ratio=0.5,
        compression_queries='row',
        compressed_rows=6,
    ),
    'by text': dict(language_keep_ratio=0.4, compression_queries='text', compressed_rows=6),
}


def spoil(engine):
    """Fill every free row of every arena with NaN."""
    kv = engine.kv
    for arena, free in (
        (kv.prefixes, kv.frames._free),
        (kv.decode_kv, kv.streams._free_rows),
    ):
        arena.kv[:, :, [row for row in range(arena.rows) if row in free]] = math.nan
    if not len(kv.copies):
        kv.compressed.k.fill_(math.nan)
        kv.compressed.v.fill_(math.nan)


def act_and_answer(engine, observe, robots, spoiled):
    """Return the chunks and answers of frames and questions of different lengths."""
    results = []
    for n in (1, 2, 3):
        if spoiled:
            spoil(engine)
        frames = [
            observe(
                n + 10 * i,
                robot=robot,
                missing=(1,) if i == 0 else (),
                instruction='go' * (1 + 8 * i) + '!' * (3 - n),
            )
            for i, robot in enumerate(robots)
        ]
        handles = engine.prefill(frames)
        for i, handle in enumerate(handles):
            for j in range(2):
                engine.open(handle, 'q' * (2 + 5 * j + i), max_tokens=6)
        streams = engine.kv.streams.live()
        while engine.kv.streams.live():
            engine.decode()
        results += [(tuple(stream.tokens), stream.reason) for stream in streams]
        with engine.kv.frames.leases(handles) as leases:
            chunks = engine.denoise(leases, [math.inf] * len(leases))
        results += [chunk.values for chunk in chunks]
    return results


@pytest.mark.parametrize('robots', [['a'], ['a', 'b', 'c']])
@pytest.mark.parametrize('way', WAYS)
def test_nan_in_free_rows_changes_nothing(make_engine, observe, way, robots):
    config = dict(rows=12, max_batch_robots=4, streams=8) | WAYS[way]
    clean = act_and_answer(make_engine(**config), observe, robots, spoiled=False)
    spoiled = act_and_answer(make_engine(**config), observe, robots, spoiled=True)
    for expected, got in zip(clean, spoiled, strict=True):
        np.testing.assert_equal(got, expected)
