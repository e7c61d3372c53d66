"""Plots of compression, PNG files under out/bench."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from benchmarks.common.pictures import plt, save
from benchmarks.compress.ways import MODES, OURS, TENTH, P, default


def metrics(layers: Sequence[dict], hits: Sequence[dict]) -> None:
    """Plot sparsity (figure 2), hit rates (3), contribution (10) and coverage (11)."""
    figure, axes = plt.subplots(2, 3, figsize=(15, 8), layout='constrained')
    numbers = [row['layer'] for row in layers]
    for phase in ('prefill', 'decode'):
        low, middle, high = (
            [row[f'{phase}_{name}'] for row in layers] for name in ('low', 'sparsity', 'high')
        )
        axes[0, 0].plot(numbers, middle, marker='o', label=f'{phase}, mean and range of heads')
        axes[0, 0].fill_between(numbers, low, high, alpha=0.2)
    axes[0, 0].set(xlabel='layer', ylabel='sparsity', ylim=(0, 1))
    axes[0, 0].legend(frameon=False)
    for axis, by in zip(axes[0, 1:], ('strict', 'row'), strict=True):
        for name, line in _lines(hits, 'score', by).items():
            axis.plot(*zip(*line, strict=True), _style(name), marker='o', label=name)
        of = 'question' if by == 'strict' else 'row'
        axis.set(xscale='log', xlabel='k / n', ylabel=f'cache hit rate, scored by {of}')
        axis.legend(frameon=False)
    for row in hits:
        if (row['of'], row['by'], row['keep_ratio']) == ('score', 'strict', TENTH):
            style = _style(row['name'])
            axes[1, 0].plot(numbers, row['layers'], style, marker='o', label=row['name'])
    axes[1, 0].set(xlabel='layer', ylabel='cache hit rate, k / n = 0.1')
    axes[1, 0].legend(frameon=False)
    for axis, name in zip(axes[1, 1:], ('contribution', 'coverage'), strict=True):
        bottom = [0.0] * len(layers)
        for modality in ('vision', 'text'):
            part = [row[f'{name}_{modality}'] for row in layers]
            axis.bar(numbers, part, 0.7, bottom, label=modality)
            bottom = [a + b for a, b in zip(bottom, part, strict=True)]
        axis.set(xlabel='layer', ylabel=name, ylim=(0, 1.2))
        axis.legend(frameon=False, ncols=2)
    save(figure, 'compress_metrics')


def _style(name: str) -> str:
    """Return a dashed line for `normalised`: where all is visible, it equals `accumulated`."""
    return '--' if name == 'normalised' else '-'


def _lines(rows: Sequence[dict], of: str, by: str) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if (row['of'], row['by']) == (of, by):
            lines.setdefault(row['name'], []).append((row['keep_ratio'], row['hit']))
    return lines


def quality(rows: Sequence[dict]) -> None:
    """Plot right answers by what was kept (figure 5), in each mode, and by p (figure 8)."""
    figure, axes = plt.subplots(1, len(MODES) + 1, figsize=(18, 4.6), layout='constrained')
    whole = rows[0]['right']['rate']
    for axis, by in zip(axes, MODES, strict=False):
        own = [row for row in rows if row['by'] == by and row['p'] == P]
        axis.set_prop_cycle(color=plt.get_cmap('tab20').colors)
        for label in dict.fromkeys(row['label'] for row in own):
            line = [(r['kept'], r['right']['rate']) for r in own if r['label'] == label]
            width = 2.5 if label == default(by).label else 1.0
            axis.plot(*zip(*sorted(line), strict=True), marker='o', lw=width, label=label)
        _finish(axis, whole, f'right answers, {by}')
    own = [row for row in rows if row['by'] == 'strict' and row['label'] == OURS]
    for p in sorted({row['p'] for row in own}):
        line = [(row['kept'], row['right']['rate']) for row in own if row['p'] == p]
        axes[-1].plot(*zip(*sorted(line), strict=True), marker='o', label=f'p = {p:g}')
    _finish(axes[-1], whole, f'right answers, strict, {OURS}')
    save(figure, 'compress_quality')


def _finish(axis: Axes, whole: float, label: str) -> None:
    axis.axhline(whole, color='grey', linewidth=0.8)
    axis.set(xscale='log', xlabel='share of the cache that is kept', ylabel=label)
    axis.legend(frameon=False, fontsize=6)
