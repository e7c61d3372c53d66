"""Plot of the ways of a frame, a PNG under out/bench."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common.pictures import plt, save


def plot(rows: Sequence[dict], ratios: Sequence[dict]) -> None:
    """Plot the frame time of each way, and the speedup of batched over isolated, by N and k."""
    chunk = rows[0]['chunk']
    rows = [row for row in rows if row['chunk'] == chunk]
    speedups = [x for x in ratios if x['way'] == 'isolated' and x['chunk'] == chunk]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout='constrained')
    ways = [key for key in rows[0] if key.endswith('_ms') and key != 'predicted_ms']
    width = 1 / (len(ways) + 1)
    for i, way in enumerate(ways):
        positions = [x + i * width for x in range(len(rows))]
        left.bar(positions, [row[way] for row in rows], width, label=way.removesuffix('_ms'))
    labels = [f'N={row["N"]}\nk={row["k"]}' for row in rows]
    left.set_xticks([x + 0.35 for x in range(len(rows))], labels, fontsize=7)
    left.set_ylabel('ms per frame')
    left.legend(frameon=False)
    for steps in sorted({x['k'] for x in speedups}):
        line = sorted((x['N'], x['ratio'] or x['wall']) for x in speedups if x['k'] == steps)
        right.plot(*zip(*line, strict=True), marker='o', label=f'k={steps}')
    right.axhline(1, color='grey', linewidth=0.8)
    right.set_xlabel('N, tokens per stream')
    right.set_ylabel('speedup of batched over isolated')
    right.legend(frameon=False)
    save(figure, 'frame')
