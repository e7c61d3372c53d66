"""The plots of the memory benchmarks, PNG under out/bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from benchmarks.common.pictures import plt, save
from benchmarks.memory.spans import COMPUTE, LOAD, Timeline

KEEP = 'keep'


def trace(accuracy: Sequence[dict], seconds: Sequence[dict]) -> None:
    """Plot time against segments (figure 9), and accuracy against time with a point per count."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout='constrained')
    rate = {(row['way'], row['retrieved']): row['right'] for row in accuracy}
    for way in dict.fromkeys(row['way'] for row in seconds):
        own = [row for row in seconds if row['way'] == way]
        times = [row['first_token_ms'] for row in own]
        style = dict(marker='o', lw=2.5 if way == KEEP else 1.0, label=way)
        left.plot([row['retrieved'] for row in own], times, **style)
        right.plot(times, [rate[way, row['retrieved']] for row in own], **style)
    left.set(xlabel='segments asked for', ylabel='ms to the first token, p50')
    right.set(xscale='log', xlabel='ms to the first token, p50', ylabel='right answers, %')
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=8)
    save(figure, 'memory_trace')


def ablations(answers: Sequence[dict], seconds: Sequence[dict]) -> None:
    """Plot right answers against time, a point per variant that has both."""
    figure, axis = plt.subplots(figsize=(9, 5.5), layout='constrained')
    right = {row['way']: row['right'] for row in answers}
    for row in seconds:
        if row['way'] in right:
            point = row['first_token_ms'], right[row['way']]
            axis.plot(*point, 'o', color='tab:red' if row['way'].startswith(KEEP) else 'tab:blue')
            axis.annotate(row['way'], point, (4, 2), textcoords='offset points', fontsize=6)
    axis.set(xscale='log', xlabel='ms to the first token, p50', ylabel='right answers, %')
    save(figure, 'memory_ablations')


def churn(rows: Sequence[dict], aim: float) -> None:
    """Plot each way's time relative to KEEP's: a panel per way, a line per cost of loads.

    KEEP and the way are equally fast where a line is at 1.
    """
    panels = list(dict.fromkeys(row['way'] for row in rows))
    size = dict(figsize=(3.2 * len(panels), 3), layout='constrained')
    figure, axes = plt.subplots(1, len(panels), sharey=True, squeeze=False, **size)
    colours, loads = plt.get_cmap('viridis'), sorted({row['load'] for row in rows})
    for axis, panel in zip(axes[0], panels, strict=True):
        for i, load in enumerate(loads):
            mine = [r for r in rows if (r['way'], r['load']) == (panel, load)]
            x, y = zip(*((r['updates'], r['of_keep_x']) for r in mine), strict=True)
            axis.plot(x, y, marker='.', color=colours(i / max(1, len(loads) - 1)), label=f'{load}')
        for level in (1.0, aim):
            axis.axhline(level, color='grey', lw=0.8, ls=':')
        axis.set_title(panel, fontsize=8)
        axis.set_xlabel('updates between plans')
    axes[0][0].set_ylabel("times KEEP's time")
    small = dict(fontsize=6, title_fontsize=6)
    axes[0][-1].legend(title='a load, in parts of computing', frameon=False, ncols=2, **small)
    save(figure, 'memory_churn')


def timelines(drawn: Mapping[str, Mapping[str, Timeline]]) -> None:
    """Plot timelines (figure 8): a row per source, scaled to its longest; a column per policy."""
    policies = len(next(iter(drawn.values())))
    size = dict(figsize=(4.6 * policies, 1.5 * len(drawn)), layout='constrained')
    figure, axes = plt.subplots(len(drawn), policies, squeeze=False, **size)
    for row, (source, by_policy) in zip(axes, drawn.items(), strict=True):
        longest = max(timeline.end for timeline in by_policy.values())
        for axis, (policy, timeline) in zip(row, by_policy.items(), strict=True):
            _draw(axis, timeline)
            axis.set_title(f'{source}: {policy}, ms', fontsize=8)
            axis.set_xlim(0, 1e3 * longest)
    save(figure, 'memory_timeline')


def _draw(axis: Axes, timeline: Timeline) -> None:
    """Draw the spans of a timeline, coloured by layer; computation also has the layer's number."""
    colours = plt.get_cmap('viridis')
    last = max(1, *(span.layer for span in timeline.spans))
    for y, lane in enumerate((COMPUTE, LOAD)):
        spans = timeline.lane(lane)
        bars = [(1e3 * s.start, 1e3 * (s.end - s.start)) for s in spans]
        faces = [colours(s.layer / last) for s in spans]
        axis.broken_barh(bars, (y - 0.4, 0.8), facecolors=faces)
    for s in timeline.lane(COMPUTE):
        colour = 'white' if s.layer < 0.6 * last else 'black'
        middle = 500 * (s.start + s.end)
        axis.text(middle, 0, s.layer + 1, ha='center', va='center', fontsize=6, color=colour)
    axis.set_yticks((0, 1), (COMPUTE, LOAD))
    axis.tick_params(labelsize=7)
