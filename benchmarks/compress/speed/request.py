"""A frame, a question, an answer: the initial cost of compression, and what each step saves.

The ways take turns, each with its own prefill: `full`; `by row`, where the prompt's own text
scores the prefix as it is written; `by text`, the default, where the question adds its scores as
it is appended. The added work is timed in place, part by part: statistics of attention, selection
(budgets and top tokens) and gather (allocation, and the copy into it). The growth of the whole
calls is reported in addition; it has the noise of a prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from unittest import mock

from benchmarks.common import clock, physics
from benchmarks.common.clock import Ceilings
from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed import scene
from benchmarks.compress.speed.decode import reads
from benchmarks.compress.speed.models import IMAGE, TEXT
from embodied_kv.compress.base import Method
from embodied_kv.config import ModelConfig
from embodied_kv.engine.engine import Engine
from embodied_kv.kv.compressed_pool import CompressedPool
from embodied_kv.kv.scored import Scores

PARTS = {
    'statistics': (Scores, 'record'),
    'selection': (Method, 'select'),
    'gather': (CompressedPool, 'compress'),
}
QUESTION = 24  # tokens, where there is an answer
BEGINS = 6  # repeats of appending a question without an answer
Call = dict[str, float]  # seconds: took, and of PARTS
Pairs = list[tuple[Call, Call]]  # without and with compression


@contextmanager
def stopwatch(device: str = 'cpu') -> Iterator[Call]:
    """Add up the seconds of each part of compression.

    Statistics inside a captured graph are not measured.
    """
    spent = dict.fromkeys(PARTS, 0.0)

    def timed(part: str, function: Callable) -> Callable:
        def wrapper(*args, **kwargs):
            began = clock.now(device)
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] += clock.now(device) - began

        return wrapper

    with ExitStack() as patches:
        for part, (owner, name) in PARTS.items():
            work = timed(part, getattr(owner, name))
            patches.enter_context(mock.patch.object(owner, name, work))
        yield spent


def call(work: Callable[[], object], device: str) -> Call:
    """Return the seconds of one call, and those of each part of compression in it."""
    with stopwatch(device) as spent:
        took = clock.seconds(work, device)
    return dict(took=took) | spent


def frame(
    engines: Mapping[str, Engine], sequence: int, answer: int, device: str
) -> dict[str, dict[str, Call]]:
    """Return calls by phase and way: a new frame, a question, an answer of `answer` tokens."""
    observation = scene.observation(engines['full'], sequence)
    calls: dict[str, dict[str, Call]] = dict(prefill={}, begin={}, steps={})
    for way in clock.order(engines, sequence):
        calls['prefill'][way] = call(partial(engines[way].prefill, [observation]), device)
    for way in clock.order(engines, sequence):
        engine = engines[way]
        scene.ask(engine, engine.kv.frames.current(), QUESTION, answer)
        calls['begin'][way] = call(engine.decode, device)
    decoded = dict.fromkeys(engines, 0.0)
    for number in range(answer - 1):
        for way in clock.order(engines, number):
            decoded[way] += clock.seconds(engines[way].decode, device)
    return calls | dict(steps={way: dict(took=took) for way, took in decoded.items()})


def measure(
    policy: FullPolicy, views: int, repeats: int, ceilings: Ceilings, device: str
) -> tuple[list[dict], list[dict]]:
    """Return rows of what compression costs, and of an answer from camera to last token."""
    c, room = policy.config, dict(rows=4, streams=2, compressed_rows=1)
    engines = {
        way: scene.make_engine(policy, views * IMAGE + TEXT, **room | own)
        for way, own in scene.WAYS.items()
    }
    frame(engines, 0, 3, device)  # warm-up
    frames = [frame(engines, n, scene.ANSWER, device) for n in range(1, repeats + 1)]
    context = engines['full'].kv.frames.current().length
    facts = dict(model=c.name, context=context)

    def beside_full(phase: str, way: str) -> Pairs:
        return [(f[phase]['full'], f[phase][way]) for f in frames]

    costs = [
        facts
        | dict(scored='by row')
        | cost(beside_full('prefill', 'by row'), beside_full('begin', 'by row'))
        | dict(floor_ms=1e3 * scoring_floor(c, context, (TEXT,), ceilings))
    ]
    for tokens in scene.QUESTIONS:
        begun = begins(engines, tokens, device)
        costs.append(
            facts
            | dict(scored=f'by text, {tokens}')
            | cost(beside_full('prefill', 'by text'), begun)
            | dict(floor_ms=1e3 * scoring_floor(c, context, (TEXT, tokens), ceilings))
        )
    return costs, [facts | row for row in answers(c, context, frames, ceilings)]


def begins(engines: Mapping[str, Engine], tokens: int, device: str) -> Pairs:
    """Append a question to the newest frame, not scored and scored, in turn; return both calls."""

    def begun(engine: Engine) -> Call:
        stream = scene.ask(engine, engine.kv.frames.current(), tokens, scene.ANSWER)
        taken = call(engine.decode, device)
        engine.cancel(stream.id)
        engine.deltas()
        return taken

    ways = ('full', 'by text')
    rounds = [
        {way: begun(engines[way]) for way in clock.order(ways, number)}
        for number in range(BEGINS + 1)
    ]
    return [(taken['full'], taken['by text']) for taken in rounds[1:]]


def cost(prefills: Pairs, begins: Pairs) -> dict[str, float]:
    """Return what prefill and begin take more: by part, in all, and the growth of each call.

    By row, begin shrinks, as the question reads the copy.
    """
    phases = dict(prefill=prefills, begin=begins)
    base = sum(median(plain['took'] for plain, _ in pairs) for pairs in phases.values())
    parts = {
        part: sum(median(own[part] for _, own in pairs) for pairs in phases.values())
        for part in PARTS
    }
    if not parts['statistics']:  # inside a graph
        grown = (median(own['took'] - plain['took'] for plain, own in p) for p in phases.values())
        parts['statistics'] = max(0.0, sum(grown) - sum(parts.values()))
    return (
        dict(prefill_begin_ms=1e3 * base)
        | {f'{part}_ms': 1e3 * took for part, took in parts.items()}
        | dict(overhead_pct=100 * sum(parts.values()) / base)
        | {
            f'{phase}_grown_pct': 100
            * median(own['took'] / plain['took'] - 1 for plain, own in pairs)
            for phase, pairs in phases.items()
        }
    )


def scoring_floor(c: ModelConfig, n: int, queries: Sequence[int], ceilings: Ceilings) -> float:
    """Return the minimum seconds of the cost: scores of n keys, and a tenth of the KV copied.

    queries: of each pass over the keys.
    """
    kv = n * c.kv_bytes_per_token
    passes = (
        ceilings.floor(physics.attention_flops(c, asked, n) / 2, kv / 2)  # no values
        for asked in queries
    )
    return sum(passes) + ceilings.floor(0, 2 * scene.KEEP_RATIO * kv)


def answers(
    c: ModelConfig, context: int, frames: Sequence[dict], ceilings: Ceilings
) -> Iterator[dict]:
    """Yield a row for each way.

    floor_ms: of all three phases. by_bytes: speedups if steps took as long as their bytes, and
    scoring took no time.
    """
    tenth = scene.KEEP_RATIO * context
    times = {
        way: {phase: median(f[phase][way]['took'] for f in frames) for phase in frames[0]}
        for way in scene.WAYS
    }
    own_tokens = QUESTION + scene.ANSWER // 2
    read = {way: reads(c, 1, 1, context if way == 'full' else tenth, own_tokens) for way in times}
    first = ceilings.floor(**physics.prefill(c, context, context // IMAGE))
    full, whole = times['full'], sum(times['full'].values())
    for way, own in times.items():
        least = first + (scene.ANSWER - 1) * ceilings.floor(**read[way])
        least += ceilings.floor(**appended(c, tenth if way == 'by row' else context))
        ratio, total = read['full']['bytes'] / read[way]['bytes'], sum(own.values())
        row = dict(way=way) | {f'{phase}_ms': 1e3 * took for phase, took in own.items()}
        yield row | dict(
            total_ms=1e3 * total,
            floor_ms=1e3 * least,
            steps_speedup=full['steps'] / own['steps'],
            steps_by_bytes=ratio,
            speedup=whole / total,
            by_bytes=whole / (whole - full['steps'] * (1 - 1 / ratio)),
        )


def appended(c: ModelConfig, n: float) -> dict[str, float]:
    """Return FLOP and bytes of a question behind n tokens."""
    flops = 2 * physics.backbone_weights(c) * QUESTION + physics.attention_flops(c, QUESTION, n)
    return dict(flops=flops, bytes=physics.decode_step(c, n, 1)['bytes'])
