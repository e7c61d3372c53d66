"""Plot of the speed of compression, a PNG under out/bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from benchmarks.common.pictures import plt, save


def speed(tables: Mapping[str, Sequence[dict]]) -> None:
    """Plot the speedup of a step against that by bytes alone, and throughput against latency."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout='constrained')
    _speedups(left, tables['decode'])
    _throughput(right, tables['serve'])
    save(figure, 'compress_speed')


def _speedups(axis: Axes, rows: Sequence[dict]) -> None:
    for name in dict.fromkeys(row['model'] for row in rows):
        points = [(row['by_bytes'], row['speedup']) for row in rows if row['model'] == name]
        axis.scatter(*zip(*points, strict=True), s=14, label=name)
    most = max(row['by_bytes'] for row in rows)
    axis.plot((1, most), (1, most), color='grey', linewidth=0.8)
    axis.set(xlabel='expected by bytes alone', ylabel='speedup of a step')
    axis.legend(frameon=False)


def _throughput(axis: Axes, rows: Sequence[dict]) -> None:
    """Plot throughput as in figure 6; a point is a batch size."""
    for name in dict.fromkeys(row['model'] for row in rows):
        for way, style in (('full', ':'), ('compressed', '-')):
            own = [row for row in rows if (row['model'], row['way']) == (name, way)]
            line = [(row['language_s'], row['language_tokens_s']) for row in own]
            axis.plot(*zip(*line, strict=True), style, marker='o', label=f'{name}, {way}')
    axis.set(xscale='log', xlabel='s for 100 tokens, prefill apart', ylabel='tokens/s')
    axis.legend(frameon=False)
