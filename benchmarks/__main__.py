"""`python -m benchmarks`: run every benchmark in turn, each in its own process."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

from benchmarks.common.workers import environment

DEFAULT = (
    ('parts',),
    ('frame', '--quick'),
    ('deadline', '--quick'),
    ('capsule', '--quick'),
    ('capsule.prefix_cache', '--quick'),
    ('compress.speed', '--quick'),
    ('memory.trace', '--quick'),
    ('export', '--quick'),
    ('fleet', '--quick'),
    ('fleet.charged', '--quick'),
    ('fleet.profile',),
    ('fleet.remembering', '--quick'),
    ('fleet.serving', '--quick'),
    ('fleet.speech', '--quick'),
    ('handover',),
    ('inputs', '--quick'),
    ('mission', '--quick'),
    ('plane', '--quick'),
    ('recall', '--quick'),
    ('safety', '--quick'),
    ('serving', '--quick'),
    ('watchdog', '--quick'),
    ('serving.chaos', '--quick'),
    ('soak', '--quick'),
    ('start', '--repeats', '1'),
    ('updates', '--quick'),
    ('visual_memory', '--quick'),
    ('whole', '--quick'),
)
FULL = (
    ('parts',),
    ('frame', '--full'),
    ('deadline',),
    ('capsule',),
    ('capsule.prefix_cache',),
    ('compress.metrics', '--preset', 'tabletop_long'),
    ('compress.quality', '--preset', 'tabletop_long'),
    ('compress.needle',),
    ('compress.lists',),
    ('compress.speed',),
    ('memory.trace',),
    ('memory.ablations',),
    ('memory.timeline',),
    ('memory.churn', '--measured'),
    ('memory.judge',),
    ('memory.records',),
    ('memory.construction',),
    ('memory.record_groups',),
    ('export',),
    ('fleet.calibrate',),
    ('fleet',),
    ('fleet.charged',),
    ('demo', '--busy', '2'),
    ('handover',),
    ('horizon',),
    ('latency',),
    ('fleet.profile',),
    ('fleet.remembering',),
    ('fleet.serving',),
    ('fleet.speech',),
    ('inputs',),
    ('mission',),
    ('plane',),
    ('recall',),
    ('start',),
    ('safety',),
    ('serving',),
    ('serving.chaos',),
    ('soak',),
    ('updates',),
    ('visual_memory',),
    ('whole',),
    ('whole', '--heavy'),
    ('watchdog',),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m benchmarks', description=__doc__)
    parser.add_argument('--full', action='store_true', help='whole grids')
    parser.add_argument('--list', action='store_true', help='only say which commands these are')
    args = parser.parse_args()
    for name, *options in FULL if args.full else DEFAULT:
        command = ['-m', f'benchmarks.{name}', *options]
        if args.list:
            print(shlex.join(['python', *command]))
        else:
            subprocess.run([sys.executable, *command], env=environment(), check=True)


if __name__ == '__main__':
    main()
