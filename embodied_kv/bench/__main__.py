"""`python -m embodied_kv.bench`: every benchmark in turn, each in a process of its own.

--full measures whole grids.
"""

from __future__ import annotations

import subprocess
import sys

DEFAULT = (
    ('parts',),
    ('frame',),
    ('deadline', '--quick'),
    ('capsule', '--quick'),
    ('compress', 'speed', '--quick'),
    ('memory', 'trace', '--quick'),
    ('fleet', '--quick'),
    ('fleet_profile',),
    ('fleet_serving', '--quick'),
)
FULL = (
    ('parts',),
    ('frame', '--full'),
    ('deadline',),
    ('capsule',),
    ('compress', 'metrics', '--preset', 'tabletop_long'),
    ('compress', 'quality', '--preset', 'tabletop_long'),
    ('compress', 'needle'),
    ('compress', 'speed'),
    ('memory', 'trace'),
    ('memory', 'ablations'),
    ('memory', 'timeline'),
    ('memory', 'judge'),
    ('fleet',),
    ('horizon',),
    ('fleet_profile',),
    ('fleet_serving',),
)


def main() -> None:
    for name, *options in FULL if '--full' in sys.argv[1:] else DEFAULT:
        subprocess.run([sys.executable, '-m', f'embodied_kv.bench.{name}', *options], check=True)


if __name__ == '__main__':
    main()
