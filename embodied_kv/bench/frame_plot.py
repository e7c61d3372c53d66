"""The picture of `bench.frame`: speedup over isolated execution by N and k."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot as plt


def draw(rows: list[dict], path: Path) -> None:
    """Writes a PNG: left each way's frame time, right the speedup of batched over isolated."""
    rows = [row for row in rows if 'speedup' in row and row['H'] == rows[0]['H']]
    if not rows:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout='constrained')
    labels = [f'N={r["N"]}\nk={r["k"]}' for r in rows]
    ways = [key for key in rows[0] if key.endswith('_ms') and key != 'predicted_ms']
    for i, way in enumerate(ways):
        left.bar(
            [x + i / (len(ways) + 1) for x in range(len(rows))],
            [r[way] for r in rows],
            1 / (len(ways) + 1),
            label=way.removesuffix('_ms'),
        )
    left.set_xticks([x + 0.35 for x in range(len(rows))], labels, fontsize=7)
    left.set_ylabel('ms per frame')
    left.legend(frameon=False)
    for steps in sorted({r['k'] for r in rows}):
        line = sorted((r['N'], r['speedup']) for r in rows if r['k'] == steps)
        right.plot(*zip(*line, strict=True), marker='o', label=f'k={steps}')
    right.axhline(1, color='grey', linewidth=0.8)
    right.set_xlabel('N, tokens per stream')
    right.set_ylabel('speedup of batched over isolated')
    right.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
