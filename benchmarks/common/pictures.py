"""Plots without a screen: the benchmarks write PNG files under out/bench."""

from __future__ import annotations

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from benchmarks.common import report

__all__ = ['plt', 'save']


def save(figure: Figure, name: str) -> None:
    """Write out/bench/NAME.png and close the figure."""
    report.OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(report.OUT / f'{name}.png', dpi=110)
    plt.close(figure)
