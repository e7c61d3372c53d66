"""Write tools/lock-*.txt: the newest versions that requirements, test and ros-*.txt allow.

Run with any Python that has pip; it installs nothing. A lock is a constraints file: it pins the
versions of packages and of their dependencies, and requires none of them. It applies to the Python
version that wrote it and to newer ones; older Pythons, which a pinned version may not support, use
the version ranges. It names neither the source of packages nor the build of a package (torch for a
CPU or CUDA).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
PYTHON = f'python_version >= "{sys.version_info.major}.{sys.version_info.minor}"'
HEAD = '# Written by `make lock`.\n'


def resolve(*files: Path) -> list[dict]:
    """Return the metadata of all packages that pip would install into an empty environment."""
    options = ('--dry-run', '--ignore-installed', '--quiet', '--report', '-')
    wanted = [option for file in files for option in ('-r', str(file))]
    pip = [sys.executable, '-m', 'pip', 'install', *options, *wanted]
    report = subprocess.run(pip, check=True, stdout=subprocess.PIPE).stdout
    return [package['metadata'] for package in json.loads(report)['install']]


def pin(package: dict) -> str:
    """Return the line of a package in a lock."""
    name = re.sub('[-_.]+', '-', package['name']).lower()
    version = package['version'].partition('+')[0]  # without the build
    return f'{name}=={version} ; {PYTHON}'


def main() -> None:
    """Write a lock for each ROS 2 that has wheels."""
    for ros in sorted(TOOLS.glob('ros-*.txt')):
        lock = TOOLS / ros.name.replace('ros-', 'lock-')
        files = TOOLS / 'requirements.txt', TOOLS / 'test.txt', ros
        pins = sorted(map(pin, resolve(*files)))
        lock.write_text(HEAD + '\n'.join(pins) + '\n')
        print(f'{lock.relative_to(TOOLS.parent)}: {len(pins)} packages')


if __name__ == '__main__':
    main()
