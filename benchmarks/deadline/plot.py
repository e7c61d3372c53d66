"""Plot of late chunks, a PNG under out/bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.common.pictures import plt, save


def plot(late: Mapping[str, Sequence[float]], period: float) -> None:
    """Plot the share of frames whose chunk came later than x ms; the line is the deadline."""
    figure, axis = plt.subplots(figsize=(8, 4), layout='constrained')
    for run, seconds in late.items():
        ordered = np.sort(seconds) * 1e3
        axis.step(ordered, 1 - np.arange(len(ordered)) / len(ordered), where='post', label=run)
    axis.axvline(period * 1e3, color='black', linewidth=0.8)
    axis.set_yscale('log')
    axis.set_xlabel('ms from stamp to publication')
    axis.set_ylabel('share of frames that came later')
    axis.legend(frameon=False)
    save(figure, 'deadline')
