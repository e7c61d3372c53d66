"""Plots of the fleet's benchmark, PNG files under out/bench: the paper's Figures 12 to 17."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from benchmarks.common.pictures import plt, save

WAYS = (
    ('static', 'fifo', 'FIFO', 'tab:gray'),
    ('static', 'autellix', 'Autellix', 'tab:blue'),
    ('static', 'kairos', 'Kairos, static horizons', 'tab:olive'),
    ('static', 'kairos, pending', 'the same, pending waits', 'tab:green'),
    ('dynamic', 'kairos', 'Kairos', 'tab:orange'),
)


def plot(found: dict) -> None:
    """Plot latency by rate, by fleet size, by place, and by setting."""
    _grid(found['online'], 'share', 'share of the peak rate', _systems, 'fleet_rates')
    _grid(found['fleets'], 'robots', 'robots', _systems, 'fleet_robots')
    _grid(found['places'], 'share', 'share of the peak rate', _places, 'fleet_places')
    if found['settings']:
        _settings(found['settings'], found['networks'])


def _grid(
    rows: Sequence[dict], key: str, label: str, ways: Callable[[], Sequence[tuple]], name: str
) -> None:
    names = list(dict.fromkeys(row['workload'] for row in rows))
    columns = min(4, len(names))
    figure, axes = plt.subplots(
        -(-len(names) // columns),
        columns,
        figsize=(4 * columns, 3.2 * -(-len(names) // columns)),
        layout='constrained',
        squeeze=False,
    )
    for axis, workload in zip(axes.flat, names, strict=False):
        here = [row for row in rows if row['workload'] == workload]
        for way, text, color in ways():
            _line(axis, [r for r in here if r.items() >= way.items()], key, text, color)
        axis.set(title=workload, xlabel=label, ylabel='task latency, s')
        axis.set_ylim(bottom=0)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    axes.flat[0].legend(frameon=False, fontsize=8)
    save(figure, name)


def _line(axis: Axes, rows: Sequence[dict], key: str, label: str, color: str) -> None:
    """Plot averages, with bars from P25 to P95."""
    x = [row[key] for row in rows]
    y = np.array([row['average'] for row in rows])
    low = y - np.array([row['p25'] for row in rows])
    high = np.array([row['p95'] for row in rows]) - y
    axis.errorbar(
        x, y, yerr=np.clip([low, high], 0, None), marker='o', capsize=2, label=label, color=color
    )


def _systems() -> list[tuple]:
    return [(dict(horizon=h, scheduler=s), text, color) for h, s, text, color in WAYS]


def _places() -> list[tuple]:
    colors = dict(edge='tab:blue', cloud='tab:gray', hybrid='tab:orange')
    return [(dict(where=where), where, color) for where, color in colors.items()]


def _settings(settings: Sequence[dict], networks: Sequence[dict]) -> None:
    figure, axes = plt.subplots(1, 5, figsize=(20, 3.6), layout='constrained')
    panels = [('buckets', settings), ('bucket_order', settings), ('aging', settings)]
    panels += [('latency', networks), ('bandwidth', networks)]
    for axis, (setting, rows) in zip(axes, panels, strict=True):
        for workload in dict.fromkeys(row['workload'] for row in rows):
            here = [
                row for row in rows if row['workload'] == workload and row['setting'] == setting
            ]
            labels = [_text(row['value']) for row in here]
            axis.plot(labels, [row['average'] for row in here], marker='o', label=workload)
            axis.plot(labels, [row['p95'] for row in here], 'k:', linewidth=0.8)
        axis.set(title=setting, ylabel='task latency, s (dotted: P95)')
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False, fontsize=8)
    save(figure, 'fleet_settings')


def _text(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return 'inf' if value == 10**9 else f'{value:g}'
