"""Write tools/lock-*.txt anew: the newest versions that requirements.txt and ros-*.txt allow.

Run with any Python that has pip; it installs nothing. A lock is a file of constraints: it pins
what is installed, packages of packages included, and installs nothing by itself. It says neither
where packages come from nor which build of one is taken (torch for a CPU or for CUDA).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
OLDEST = (3, 10)  # the Python that ruff.toml names
HEAD = '# Written by `make lock`.\n'


def resolve(*files: Path) -> list[dict]:
    """Metadata of all that pip would install into an empty environment."""
    options = ('--dry-run', '--ignore-installed', '--quiet', '--report', '-')
    wanted = [option for file in files for option in ('-r', str(file))]
    pip = [sys.executable, '-m', 'pip', 'install', *options, *wanted]
    report = subprocess.run(pip, check=True, stdout=subprocess.PIPE).stdout
    return [package['metadata'] for package in json.loads(report)['install']]


def pin(package: dict) -> str:
    """The line of a package; for the Pythons that this version runs on."""
    name = re.sub('[-_.]+', '-', package['name']).lower()
    version = package['version'].partition('+')[0]  # of any build
    needs = re.search(r'>=?\s*3\.(\d+)', package.get('requires_python', ''))
    if needs and (3, int(needs[1])) > OLDEST:
        return f'{name}=={version} ; python_version >= "3.{needs[1]}"'
    return f'{name}=={version}'


def main() -> None:
    """A lock for each ROS 2 that has wheels."""
    for ros in sorted(TOOLS.glob('ros-*.txt')):
        lock = TOOLS / ros.name.replace('ros-', 'lock-')
        pins = sorted(map(pin, resolve(TOOLS / 'requirements.txt', ros)))
        lock.write_text(HEAD + '\n'.join(pins) + '\n')
        print(f'{lock.relative_to(TOOLS.parent)}: {len(pins)} packages')


if __name__ == '__main__':
    main()
