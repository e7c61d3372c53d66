"""Throughput against latency, and how many streams a cache holds.

A static batch as in the paper's figure 6: every stream has a frame of its own and generates as
many tokens. Latency is that of the whole batch: its prefills and begins, then its steps together.
A prefill is operations, so the prefills of a batch take as long together as one after another.
`language` leaves the prefills out: on a robot the action needs them in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed import scene
from benchmarks.compress.speed.scene import PASSING, RESERVED
from embodied_kv.kv.compressed_arena import BLOCK


def throughput(answers: Sequence[Mapping], steps: Sequence[Mapping]) -> list[dict]:
    """Return rows by batch and way, added up from measured answers and measured steps.

    answers: of one stream, rows of one context. steps: rows of the same context. gain: tokens/s
    over those of whole prefixes.
    """
    first = {row['way']: row for row in answers}
    rows = []
    for step in steps:
        whole = None
        for way, scored in (('full', 'full'), ('compressed', 'by text')):
            batch = step['batch']
            language = batch * first[scored]['begin_ms'] + (scene.ANSWER - 1) * step[f'{way}_ms']
            latency = language + batch * first[scored]['prefill_ms']
            row = {name: step[name] for name in ('model', 'context', 'batch')} | dict(way=way)
            row |= dict(latency_s=latency / 1e3, tokens_s=1e3 * batch * scene.ANSWER / latency)
            row |= dict(
                language_s=language / 1e3, language_tokens_s=1e3 * batch * scene.ANSWER / language
            )
            whole = whole or row
            row['gain'] = row['tokens_s'] / whole['tokens_s']
            row['language_gain'] = row['language_tokens_s'] / whole['language_tokens_s']
            rows.append(row)
    return rows


def capacity(policy: FullPolicy, context: int, size: float) -> dict:
    """Return how many streams a cache of `size` bytes holds, each about a frame of its own.

    Both engines are as large as fits; streams are added until one ends or stays uncompressed.
    bound: gain of a cache without the rows that no stream may keep.
    """
    row = dict(model=policy.config.name, context=context, cache_mb=size / 1e6)
    for name, config in (('full', whole), ('compressed', compressed)):
        taken, streams = fill_up(policy, context, config(policy, context, size))
        assert taken <= size, f'{name}: {taken} bytes in a cache of {size}'
        row |= {f'{name}_mb': taken / 1e6, f'{name}_streams': streams}
    row['gain'] = row['compressed_streams'] / row['full_streams']
    row['bound'] = (context + scene.DECODE_TOKENS) / (
        scene.KEEP_RATIO * context + scene.DECODE_TOKENS
    )
    return row


def whole(policy: FullPolicy, context: int, size: float) -> dict[str, object]:
    """Return the settings of the largest engine of that size whose streams keep whole rows."""
    row, decode_kv = _bytes(policy, context)
    streams = int((size - RESERVED * row) // (row + decode_kv))
    return scene.WAYS['full'] | dict(rows=streams + RESERVED, streams=streams)


def compressed(policy: FullPolicy, context: int, size: float) -> dict[str, object]:
    """Return the settings of the largest engine of that size whose streams keep copies."""
    row, decode_kv = _bytes(policy, context)
    layers, length = policy.config.backbone.layers, scene.longest(policy, context)
    copy = -(-round(scene.KEEP_RATIO * layers * context) // BLOCK) * BLOCK
    best = 0, 0
    for compressed_rows in range(1, int(size // row)):
        streams = compressed_rows * layers * length // copy
        if (RESERVED + PASSING + compressed_rows) * row + streams * decode_kv <= size:
            best = compressed_rows, streams
    compressed_rows, streams = best
    own = dict(rows=RESERVED + PASSING, compressed_rows=compressed_rows, streams=streams)
    return scene.WAYS['by text'] | own


def _bytes(policy: FullPolicy, context: int) -> tuple[int, int]:
    """Return the bytes of a prefix row and of a decode row."""
    per_token = policy.config.kv_bytes_per_token
    return scene.longest(policy, context) * per_token, scene.DECODE_TOKENS * per_token


def fill_up(policy: FullPolicy, context: int, config: Mapping[str, object]) -> tuple[int, int]:
    """Return the bytes of an engine's cache, and how many streams with own frames it holds.

    One more stream would end one of them, or would not be compressed.
    """
    engine = scene.make_engine(policy, context, **config)
    values = scene.noise(engine)
    for number in range(engine.kv.decode_kv.rows + 1):
        live = len(engine.kv.streams.live())
        handle = scene.fill(engine, values, values, context, number)
        scene.ask(engine, handle, scene.SHORT, scene.ANSWER)
        engine.decode()
        stats = engine.kv.stats()
        if stats.evictions or engine.kv.copies.allocation_failures:
            return stats.bytes, live
    raise AssertionError('a cache holds more streams than it has decode rows')
