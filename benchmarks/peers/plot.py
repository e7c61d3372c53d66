"""The plot of phases and ways, a PNG under out/bench."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.common.pictures import plt, save


def plot(rows: Sequence[dict]) -> None:
    """Plot the time of each phase in each way, and its floor. rows: of `figures.times`."""
    figure, axis = plt.subplots(figsize=(8, 4), layout='constrained')
    positions, names = np.arange(len(rows)), [name for name in rows[0] if name.endswith('_ms')]
    for i, name in enumerate(names):
        at = positions + (i - (len(names) - 1) / 2) * 0.8 / len(names)
        label = name.removesuffix('_ms').replace('_', ' ')
        axis.barh(at, [row[name] for row in rows], 0.8 / len(names), label=label)
    axis.set_yticks(positions, [row['phase'] for row in rows])
    axis.invert_yaxis()
    axis.set_xscale('log')
    axis.set_xlabel('ms')
    axis.legend(frameon=False)
    save(figure, 'peers')
