"""Drawing without a screen: pictures of the benchmarks are PNG files under out/bench."""

from __future__ import annotations

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from benchmarks.common import report

__all__ = ['plt', 'save']


def save(figure: Figure, name: str) -> None:
    """Writes out/bench/NAME.png and closes the figure."""
    report.OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(report.OUT / f'{name}.png', dpi=110)
    plt.close(figure)
