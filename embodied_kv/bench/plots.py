"""The pictures of the benchmarks, PNG under out/bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib

matplotlib.use('Agg')
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from embodied_kv.bench.report import OUT


def frame(rows: Sequence[dict]) -> None:
    """Left the frame time of each way, right the speedup of batched over isolated, by N and k."""
    rows = [row for row in rows if 'speedup' in row and row['H'] == rows[0]['H']]
    if not rows:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout='constrained')
    ways = [key for key in rows[0] if key.endswith('_ms') and key != 'predicted_ms']
    width = 1 / (len(ways) + 1)
    for i, way in enumerate(ways):
        places = [x + i * width for x in range(len(rows))]
        left.bar(places, [row[way] for row in rows], width, label=way.removesuffix('_ms'))
    labels = [f'N={row["N"]}\nk={row["k"]}' for row in rows]
    left.set_xticks([x + 0.35 for x in range(len(rows))], labels, fontsize=7)
    left.set_ylabel('ms per frame')
    left.legend(frameon=False)
    for steps in sorted({row['k'] for row in rows}):
        line = sorted((row['N'], row['speedup']) for row in rows if row['k'] == steps)
        right.plot(*zip(*line, strict=True), marker='o', label=f'k={steps}')
    right.axhline(1, color='grey', linewidth=0.8)
    right.set_xlabel('N, tokens per stream')
    right.set_ylabel('speedup of batched over isolated')
    right.legend(frameon=False)
    _save(figure, 'frame')


def parts(rows: Sequence[dict]) -> None:
    """Time of each phase, beside its floor."""
    figure, axis = plt.subplots(figsize=(8, 4), layout='constrained')
    places = np.arange(len(rows))
    axis.barh(places - 0.2, [row['ms'] for row in rows], 0.4, label='measured')
    axis.barh(places + 0.2, [row['floor_ms'] for row in rows], 0.4, label='floor')
    axis.set_yticks(places, [row['phase'] for row in rows])
    axis.invert_yaxis()
    axis.set_xscale('log')
    axis.set_xlabel('ms')
    axis.legend(frameon=False)
    _save(figure, 'parts')


def deadline(late: Mapping[str, Sequence[float]], period: float) -> None:
    """Share of frames whose chunk came later than so many ms; the line is the deadline."""
    figure, axis = plt.subplots(figsize=(8, 4), layout='constrained')
    for run, seconds in late.items():
        ordered = np.sort(seconds) * 1e3
        axis.step(ordered, 1 - np.arange(len(ordered)) / len(ordered), where='post', label=run)
    axis.axvline(period * 1e3, color='black', linewidth=0.8)
    axis.set_yscale('log')
    axis.set_xlabel('ms from stamp to publication')
    axis.set_ylabel('share of frames that came later')
    axis.legend(frameon=False)
    _save(figure, 'deadline')


def _save(figure: Figure, name: str) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / f'{name}.png', dpi=110)
    plt.close(figure)
