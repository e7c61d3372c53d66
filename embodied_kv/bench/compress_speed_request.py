"""A frame, a question, an answer: what compression costs before the words, and saves behind.

The ways, in turn: `full`; `by row`, where the prompt's own text scores the prefix as it is
written; `by stream`, where the question scores it as it is appended. What compression adds is
timed in place, part by part: statistics of attention, selection (budgets and top tokens) and
gather (room, and the copy into it). The difference of whole runs stands beside it; it has the
noise of a prefill.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from unittest import mock

from embodied_kv.bench import compress_speed_scene as scene
from embodied_kv.bench import physics
from embodied_kv.bench.scene import FullPolicy
from embodied_kv.compress.base import Method
from embodied_kv.engine.engine import Engine
from embodied_kv.kv.flat_rows import FlatRows
from embodied_kv.kv.scored import Scores

PARTS = {
    'statistics': (Scores, 'take'),
    'selection': (Method, 'select'),
    'gather': (FlatRows, 'compress'),
}


@contextmanager
def stopwatch(device: str = 'cpu') -> Iterator[dict[str, float]]:
    """Adds up the seconds of each part of compression.

    Statistics that are inside a captured graph are not seen.
    """
    spent = dict.fromkeys(PARTS, 0.0)

    def timed(part: str, function: Callable) -> Callable:
        def wrapper(*args, **kwargs):
            began = scene.now(device)
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] += scene.now(device) - began

        return wrapper

    with ExitStack() as patches:
        for part, (owner, name) in PARTS.items():
            work = timed(part, getattr(owner, name))
            patches.enter_context(mock.patch.object(owner, name, work))
        yield spent


def begin(engine: Engine, device: str, tokens: int = scene.QUESTION) -> dict[str, float]:
    """Seconds of appending a question about the newest frame, and of the parts."""
    scene.ask(engine, engine.kv.current(), tokens)
    with stopwatch(device) as spent:
        took = scene.seconds(engine.decode, device)
    return dict(begin=took) | spent


def frame(engines: Mapping[str, Engine], sequence: int, device: str) -> dict[str, dict]:
    """Seconds of a new frame and an answer, by way; the ways say their words in turn.

    A prefill that is not scored serves two ways: the second is given a copy.
    """
    full, by_row = engines['full'], engines['by row']
    observation = scene.observation(full, sequence)
    plain = scene.seconds(lambda: full.prefill([observation]), device)
    with stopwatch(device) as spent:
        scored = scene.seconds(lambda: by_row.prefill([observation]), device)
    handle = full.kv.current()
    k, v = full.kv.prefixes.row(handle.row)
    scene.fill(engines['by stream'], k, v, handle.length, sequence)
    runs = {way: begin(engine, device) | dict(prefill=plain) for way, engine in engines.items()}
    runs['by row'] |= spent | dict(prefill=scored)
    for run in runs.values():
        run['steps'] = 0.0
    for _ in range(scene.ANSWER - 1):
        for way, engine in engines.items():
            runs[way]['steps'] += scene.seconds(engine.decode, device)
    return runs


def measure(
    policy: FullPolicy, tokens: int, repeats: int, device: str
) -> tuple[list[dict], list[dict]]:
    """Rows of what compression costs, and of an answer from camera to last token, by way."""
    room = dict(rows=4, streams=2, flat_rows=1)
    engines = {
        way: scene.make_engine(policy, tokens, **room | own) for way, own in scene.WAYS.items()
    }
    warm = min(1, repeats - 1)
    frames = [frame(engines, n, device) for n in range(warm + repeats)][warm:]
    runs = {way: [done[way] for done in frames] for way in engines}
    facts = dict(model=policy.config.name, context=engines['full'].kv.current().length)
    plain = [run['prefill'] + run['begin'] for run in runs['full']]
    scored = [run['prefill'] + run['begin'] for run in runs['by row']]
    costs = [dict(scored='by row') | cost(runs['by row'], plain, scored)]
    costs += questions(
        engines, median(run['prefill'] for run in runs['full']), repeats + 4, device
    )
    answers = of_ways(policy, facts['context'], runs)
    return [facts | row for row in costs], [facts | row for row in answers]


def questions(
    engines: Mapping[str, Engine], prefill: float, repeats: int, device: str
) -> Iterator[dict]:
    """What scoring by questions of different lengths costs. prefill: s, of their frame."""

    def begun(engine: Engine, tokens: int) -> dict[str, float]:
        run = begin(engine, device, tokens)
        for stream in engine.kv.streams():
            engine.cancel(stream.id)
        engine.deltas()
        return run

    for tokens in scene.QUESTIONS:
        pairs = [
            [begun(engines[way], tokens) for way in ('full', 'by stream')]
            for _ in range(repeats + 1)
        ][1:]
        plain, scored = ([prefill + pair[i]['begin'] for pair in pairs] for i in (0, 1))
        share = median(own['begin'] / full['begin'] - 1 for full, own in pairs)
        row = cost([own for _, own in pairs], plain, scored) | dict(of_begin_pct=100 * share)
        yield dict(scored=f'by stream, {tokens}') | row


def cost(runs: list[dict], plain: list[float], scored: list[float]) -> dict[str, float]:
    """A row: prefill and begin without compression, its parts, and both as a share of that.

    measured: the median difference of whole runs.
    """
    base = median(plain)
    difference = median(b - a for a, b in zip(plain, scored, strict=True))
    parts = {part: median(run[part] for run in runs) for part in PARTS}
    if not parts['statistics']:  # inside a graph
        parts['statistics'] = difference - sum(parts.values())
    return (
        dict(prefill_begin_ms=1e3 * base)
        | {f'{part}_ms': 1e3 * took for part, took in parts.items()}
        | dict(overhead_pct=100 * sum(parts.values()) / base)
        | dict(measured_pct=100 * difference / base, of_begin_pct='')
    )


def of_ways(policy: FullPolicy, context: int, runs: Mapping[str, list[dict]]) -> Iterator[dict]:
    """A row for each way. bound: if steps took time by their bytes alone, and scoring none."""
    c, tail, parts = (
        policy.config,
        scene.QUESTION + scene.ANSWER // 2,
        ('prefill', 'begin', 'steps'),
    )
    times = {way: {p: median(run[p] for run in done) for p in parts} for way, done in runs.items()}
    full, whole = times['full'], sum(times['full'].values())
    for way, own in times.items():
        kept = context if way == 'full' else scene.ALPHA * context
        read = [physics.decode_step(c, n + tail, 1)['bytes'] for n in (context, kept)]
        total = sum(own.values())
        yield (
            dict(way=way)
            | {f'{part}_ms': 1e3 * own[part] for part in parts}
            | dict(
                total_ms=1e3 * total,
                steps_speedup=full['steps'] / own['steps'],
                steps_bound=read[0] / read[1],
                speedup=whole / total,
                bound=whole / (whole - full['steps'] * (1 - read[1] / read[0])),
            )
        )


def median(values: Iterator[float] | list[float]) -> float:
    return statistics.median(values)
