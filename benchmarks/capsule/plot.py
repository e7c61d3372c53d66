"""Plot of the capsule benchmark, a PNG under out/bench."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common.pictures import plt, save

LABELS = {'pinned': 'pinned, all', 'pinned_bounded': 'pinned, bytes of the LRU', 'lru': 'LRU'}


def plot(prefixes: Sequence[dict], copies: Sequence[dict], sets: Sequence[dict]) -> None:
    """Plot time to first token by length, bandwidth by capsule, and time by working set size."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.2), layout='constrained')
    lengths = [row['length'] for row in prefixes]
    for way in ('cold', 'full', 'restored'):
        left.plot(lengths, [row[f'{way}_p50_ms'] for row in prefixes], marker='o', label=way)
    for row in prefixes:
        left.annotate(
            f'{row["speedup"]:.0f}x', (row['length'], row['restored_p50_ms']), fontsize=8
        )
    left.set(xscale='log', yscale='log', xlabel='tokens of the prefix', ylabel='ms to first token')
    left.set_xticks(lengths, [str(length) for length in lengths])
    left.set_xticks([], minor=True)
    for i, way in enumerate(('snapshot', 'restore', 'copy')):
        positions = [x + 0.27 * i for x in range(len(copies))]
        middle.bar(positions, [row[f'{way}_gbs'] for row in copies], 0.25, label=way)
    labels = [f'{row["of"]}, threads: {row["threads"]}' for row in copies]
    middle.set_xticks([x + 0.27 for x in range(len(copies))], labels, fontsize=7, rotation=90)
    middle.set_ylabel('GB/s')
    for store, label in LABELS.items():
        times = [row[f'{store}_ms'] for row in sets]
        right.plot([row['contexts'] for row in sets], times, marker='o', label=label)
    right.set_xticks([row['contexts'] for row in sets])
    right.set(yscale='log', xlabel='contexts of the working set', ylabel='mean ms to first token')
    for axis in (left, middle, right):
        axis.legend(frameon=False)
    save(figure, 'capsule')
