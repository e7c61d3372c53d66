"""The tables of late chunks. Knows figures, not how they were measured."""

from __future__ import annotations

from benchmarks.common import report

NOTES = dict(
    rows='seconds: median of successes; jerk: rad/s^3, of the measured joints; seam: rad, the '
    'largest of an episode; both from the second take-over on, meant over the episodes',
    costs='points of success; at most: with 95% on one side',
    by_steps='points of success; at most: with 95% on one side',
    against_off='points of success, 95% interval; jerk and seam: over those of off, 95% interval',
)
TITLES = dict(
    rows='latency: success and smoothness',
    costs='latency: what each way loses from its own 0 ms',
    by_steps='latency: what fewer Euler steps lose',
    against_off='latency: each way beside off, at the same latency',
)


def show(found: dict) -> None:
    """Print the tables that have rows, the verdict last."""
    lines = dict(rows=_row, costs=_lost, by_steps=_lost, against_off=_beside)
    for key, line in lines.items():
        if found.get(key):
            report.show(TITLES[key], [line(row) for row in found[key]], NOTES[key])
    if found['verdict']:
        report.show('latency: verdict', found['verdict'])


def _row(row: dict) -> dict:
    share = row['success']
    return dict(
        **_named(row),
        n=share['n'],
        success=f'{100 * share["rate"]:.1f}%',
        interval=f'{100 * share["low"]:.1f} to {100 * share["high"]:.1f}',
        **row['by_family'],
        seconds=row['seconds'],
        jerk_rms=row['jerk_rms'],
        jerk_max=row['jerk_max'],
        seam=row['seam'],
        path=row['joint_path'],
        chunks=row['chunks'],
    )


def _lost(row: dict) -> dict:
    families = {
        family: f'{of["lost"]:.1f} (at most {of["at_most"]:.1f})'
        for family, of in row['by_family'].items()
    }
    return _named(row) | dict(lost=row['lost'], at_most=row['at_most']) | families


def _beside(row: dict) -> dict:
    families = {family: f'{of["difference"]:+.1f}' for family, of in row['by_family'].items()}
    return dict(
        **_named(row),
        difference=f'{row["difference"]:+.1f}',
        interval=f'{row["low"]:.1f} to {row["high"]:.1f}',
        above=f'{row["above"]:.1f}',
        **families,
        jerk=_ratio(row['jerk_rms']),
        seam=_ratio(row['seam']),
    )


def _named(row: dict) -> dict:
    return dict(way=row['way'], ms=row['latency'], steps=row['euler_steps'])


def _ratio(of: dict | None) -> str:
    return '' if of is None else f'{of["ratio"]:.2f} ({of["low"]:.2f} to {of["high"]:.2f})'
