"""The plot of late chunks, a PNG under out/bench."""

from __future__ import annotations

import numpy as np

from benchmarks.common.pictures import plt, save
from benchmarks.latency.figures import Points
from training.evaluate.report import rate

LABELS = dict(jerk_rms='jerk, rms of an episode, rad/s³', seam='largest step at a seam, rad')


def plot(points: Points) -> None:
    """Plot success (95% intervals), jerk and seams over latency; hollow where latency varies."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout='constrained')
    lines = dict.fromkeys((point.way, point.euler_steps) for point in points)
    counts = {steps for _, steps in lines}
    for number, (way, steps) in enumerate(lines):
        label = way if len(counts) == 1 else f'{way}, {steps} steps'
        for varies in (False, True):
            some = {
                point.latency_ms: episodes
                for point, episodes in points.items()
                if (point.way, point.euler_steps, bool(point.spread)) == (way, steps, varies)
            }
            # Shifted sideways, so that the intervals do not overlap.
            at = np.array(sorted(some)) + 3 * (number - len(lines) / 2)
            style = dict(color=f'C{number}', marker='o', linestyle='none' if varies else '-')
            style |= dict(markerfacecolor='none') if varies else dict(label=label)
            _draw(axes, at, [some[latency] for latency in sorted(some)], style)
    axes[0].set(ylabel='episodes that succeed, %')
    for axis, label in zip(axes[1:], LABELS.values(), strict=True):
        axis.set(ylabel=label, ylim=(0, None))
    for axis in axes:
        axis.set_xlabel('ms from an observation until its chunk takes over')
    axes[0].legend(frameon=False)
    save(figure, 'latency')


def _draw(axes: np.ndarray, at: np.ndarray, some: list, style: dict) -> None:
    """Draw one line into each of the axes."""
    if not some:
        return
    shares = [rate(int(of.done.sum()), len(of.done)) for of in some]
    rates, low, high = (
        100 * np.array([share[name] for share in shares]) for name in ('rate', 'low', 'high')
    )
    axes[0].errorbar(at, rates, [rates - low, high - rates], capsize=2, **style)
    for axis, name in zip(axes[1:], LABELS, strict=True):
        values = [getattr(of, name) for of in some]
        axis.plot(at, [np.nanmean(v) if np.isfinite(v).any() else np.nan for v in values], **style)
