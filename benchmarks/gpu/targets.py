"""The targets of stages that measure times, misses and actions: what a stage missed, as text.

A stage whose comparison of results fails has the status `failed`; one that only misses its target
has the status `missed`. Does not know how a stage is run, nor torch.
"""

from __future__ import annotations

FRAME_MS = {'captured': 20.0, 'compiled': 14.0}  # of two views, on an H200
DECODE_FLOORS = 1.5


def frames(found: dict) -> str:
    """Return the frames and decode steps of the last way that exceed their targets, or ''."""
    way = found['rows'][-1]['way']
    missed = [_frame(row) for row in found['rows'] if row['way'] == way]
    return ', '.join(filter(None, missed))


def _frame(row: dict) -> str:
    if row['phase'] == 'frame' and row['ms'] > FRAME_MS[row['way']]:
        return f'a frame takes {row["ms"]:.4g} ms (target {FRAME_MS[row["way"]]:g})'
    if row['phase'].startswith('decode') and row['of_floor'] < 1 / DECODE_FLOORS:
        times = 1 / row['of_floor']
        return f'{row["phase"]} takes {times:.3g} times its floor (target {DECODE_FLOORS:g})'
    return ''


def in_time(found: dict) -> str:
    """Return how many chunks came too late, or ''."""
    row = found['rows'][0]
    return f'{row["misses"]} of {row["deadlines"]} chunks came too late' if row['misses'] else ''


def in_time_compiled(found: dict) -> str:
    """Return what `in_time` does, or that the engine ran uncompiled."""
    if not found['rows'][0]['compiled']:
        return 'nothing was compiled: the figures are those of captured graphs'
    return in_time(found)


def equal_actions(found: dict) -> str:
    """Return how many points of the grid have ways with different actions, or ''."""
    differ = sum(not row['actions_equal'] for row in found['rows'])
    return f'actions of the ways differ at {differ} of {len(found["rows"])} points' * bool(differ)
