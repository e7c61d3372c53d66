"""Attention statistics about compression: sparsity, hit rates, and the attended modality.

Source: VL-Cache, sections 3.1, 3.2 and A.7; figures 2, 3, 10 and 11.

- sparsity: share of visible entries below p of their row's maximum, of the question's queries
  (prefill) and of the answer's (decode), by layer: mean, lowest and highest head.
- CacheHitRate, of a score: the part of the k positions to which the answer's first token attends
  most that the score ranks among its own best k. Of a way: the same of what it keeps, with its own
  k in each layer. `mass`: the share of that token's attention to the prefix that falls on what is
  kept.
- contribution and coverage: share of vision in what the answer's tokens attend to, of the whole
  prompt: by attention above the threshold, and by count among the top 10%. Text is the rest.

Everything is read from one prefill, one question and the answer that the whole cache gives,
recorded in a single pass.

Physics: chance gives a hit rate of k/n; at a keep ratio r, k is r times n.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from benchmarks.common.command import command
from benchmarks.compress import formulas as metrics
from benchmarks.compress import plots
from benchmarks.compress.cache import Harness
from benchmarks.compress.kept import RecordedQuestion, kept_by, rule, statistics
from benchmarks.compress.policy import add_policy, load, settings, show
from benchmarks.compress.questions import moments
from benchmarks.compress.scores import attention
from benchmarks.compress.ways import (
    KEEP_RATIOS,
    METHODS,
    OURS,
    POOLED,
    ROW,
    STRICT,
    TENTH,
    WIDE,
    P,
    Way,
)

FRAMES = 60  # about 500 questions
BY = (STRICT, ROW)  # by question, and by row
SCORES = {  # what the methods rank by, as figure 3 names it
    OURS: 'post-vision',
    WIDE: 'post-vision, all text',
    POOLED: 'post-vision, all text, pooled',
    'h2o': 'accumulated',
    'zipcache': 'normalised',
    'snapkv': 'sliding window',
    'random': 'random',
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    add_policy(parser, FRAMES)


def run(args: argparse.Namespace) -> dict:
    """Measure, print the tables, and return all figures: means over questions."""
    policy, found = load(args), defaultdict(list)
    harness = Harness(policy, ())
    with torch.inference_mode(), Progress(console=Console(stderr=True)) as bar:
        for frame, questions in bar.track(moments(policy.config, args.frames), total=args.frames):
            recorded = harness.prefill(frame.observation)
            for question in questions:
                asked = harness.ask(recorded, question.text)
                harness.answers(asked, ())
                if asked.stream.tokens:
                    for name, value in measure(harness, asked).items():
                        found[name].append(np.asarray(value))
            harness.release(recorded)
    means = {name: np.mean(values, 0) for name, values in found.items()}
    result = settings(args) | dict(
        questions=len(found['tokens']),
        tokens=dict(zip(('vision', 'text', 'question', 'answer'), means['tokens'], strict=True)),
        layers=layer_rows(means),
        hits=hit_rows(means),
    )
    if not args.json:
        show('metrics', args, dict(layers=result['layers']) | pivots(result['hits']))
        plots.metrics(result['layers'], result['hits'])
    return result


def measure(harness: Harness, asked: RecordedQuestion) -> dict[object, object]:
    """Return all measures of one question whose answer has been given.

    Keys are names; ('way', mode, method, keep_ratio) for hit rate and mass of what is kept,
    [layers, 2]; and ('score', mode, score, keep_ratio) for the hit rate of what a method ranks by,
    [layers].
    """
    recorded, question, answer = asked.frame, asked.stream.query.ids, asked.stream.tokens
    prefix, decoded = recorded.scorer.prefix, harness.record(recorded, [*question, *answer])
    behind = len(question)
    attentions = [
        attention(q[behind:], keys, own, start=behind)
        for q, keys, own in zip(decoded.queries, prefix.keys, decoded.keys, strict=True)
    ]  # of each layer [heads, answer tokens, positions]
    kv_heads = prefix.keys[0].shape[0]
    # What the answer's first token attends to, by KV head: [kv_heads, n] of each layer.
    truth = [
        weights[:, 0, : recorded.n].unflatten(0, (kv_heads, -1)).mean(1) for weights in attentions
    ]
    found = dict(tokens=(recorded.vision, recorded.text, behind, len(answer)))
    found |= modalities(attentions, recorded.vision, recorded.n + behind)
    scored = statistics(Way(OURS, TENTH, STRICT), recorded, asked)
    found['sparsity_prefill'] = [_spread(1 - density) for density in scored.density]
    found['sparsity_decode'] = [_spread(sparsity(weights, P)) for weights in attentions]
    for by in BY:
        for method in METHODS:
            for keep_ratio in KEEP_RATIOS:
                way = Way(method, keep_ratio, by)
                kept = kept_by(way, recorded, asked)
                pairs = zip(kept, truth, strict=True)
                found['way', by, method, keep_ratio] = [
                    (_hit(k, t), _mass(k, t)) for k, t in pairs
                ]
                if method in SCORES:
                    scores = rule(way, recorded).scores(statistics(way, recorded, asked))
                    k = max(1, round(keep_ratio * recorded.n))
                    found['score', by, SCORES[method], keep_ratio] = [
                        float(metrics.cache_hit_rate(score, t, k).mean())
                        for score, t in zip(scores, truth, strict=True)
                    ]
    return found


def modalities(attentions: Sequence[Tensor], vision: int, prompt: int) -> dict[str, list[float]]:
    """Return contribution and coverage by layer, of vision and of the prompt's other tokens.

    attentions: of each layer, attention of decoded tokens [heads, tokens, positions]. vision,
    prompt: positions below these are image tokens, and the whole prompt.
    """
    position = torch.arange(attentions[0].shape[-1])
    within = position < prompt
    chosen = dict(vision=position < vision, text=within & (position >= vision))
    measures = dict(contribution=metrics.contribution, coverage=metrics.coverage)
    return {
        f'{name}_{modality}': [float(of(weights, some, within).mean()) for weights in attentions]
        for name, of in measures.items()
        for modality, some in chosen.items()
    }


def sparsity(weights: Tensor, p: float) -> Tensor:
    """Return the share of visible entries below p of their row's maximum (3.1), [heads].

    weights: [heads, tokens, positions] of the last tokens, 0 where hidden.
    """
    _, tokens, positions = weights.shape
    kept = (metrics.threshold_filter(weights, p) > 0).sum((1, 2))
    visible = tokens * positions - tokens * (tokens - 1) // 2
    return 1 - kept / visible


def _hit(kept: Tensor, truth: Tensor) -> float:
    return float(metrics.hit_rate(kept, truth).mean())


def _mass(kept: Tensor, truth: Tensor) -> float:
    return float((truth.gather(1, kept).sum(1) / truth.sum(1)).mean())


def _spread(values: Tensor) -> tuple[float, float, float]:
    """Return mean, lowest and highest."""
    return float(values.mean()), float(values.min()), float(values.max())


def layer_rows(means: Mapping[object, np.ndarray]) -> list[dict]:
    """Return a row per layer: sparsity, contribution and coverage."""
    rows = []
    for layer in range(len(means['coverage_vision'])):
        row: dict[str, float] = dict(layer=layer)
        for phase in ('prefill', 'decode'):
            names = (f'{phase}_sparsity', f'{phase}_low', f'{phase}_high')
            row |= zip(names, means[f'sparsity_{phase}'][layer].tolist(), strict=True)
        for name in ('contribution', 'coverage'):
            for modality in ('vision', 'text'):
                row[f'{name}_{modality}'] = float(means[f'{name}_{modality}'][layer])
        rows.append(row)
    return rows


def hit_rows(means: Mapping[object, np.ndarray]) -> list[dict]:
    """Return a row per way and per score: mean hit rate, mass, and hit rates by layer.

    The mass of a score is 0.
    """
    rows = []
    for key, values in means.items():
        if not isinstance(key, tuple):
            continue
        row = dict(zip(('of', 'by', 'name', 'keep_ratio'), key, strict=True))
        hits, mass = (values[:, 0], float(values[:, 1].mean())) if key[0] == 'way' else (values, 0)
        rows.append(row | dict(hit=float(hits.mean()), mass=mass, layers=hits.tolist()))
    return rows


def pivots(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """Return tables by title, each with a row per method or score and a column per keep ratio."""
    tables: dict[str, dict[str, dict]] = defaultdict(dict)
    for row in rows:
        measures = ('hit', 'mass') if row['of'] == 'way' else ('hit',)
        for measure in measures:
            table = tables[f'{measure} of a {row["of"]}, {row["by"]}']
            line = table.setdefault(row['name'], dict(name=row['name']))
            line[f'{row["keep_ratio"]:.0%}'] = row[measure]
    return {title: list(table.values()) for title, table in tables.items()}


main = command('compress.metrics', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
