"""tools/lock-*.txt pins every requirement to a version within its range."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOOLS = Path(__file__).resolve().parent.parent / 'tools'
LOCKS = sorted(TOOLS.glob('lock-*.txt'))


def read(path: Path) -> dict[str, Requirement]:
    """Return requirements by normalised name; raise on a line that names a host or a file."""
    lines = [line.partition('#')[0].strip() for line in path.read_text().splitlines()]
    wanted = [Requirement(line) for line in lines if line]
    return {canonicalize_name(requirement.name): requirement for requirement in wanted}


def test_every_ros_has_a_lock():
    ros = [path.name.removeprefix('ros-') for path in sorted(TOOLS.glob('ros-*.txt'))]
    assert ros and ros == [path.name.removeprefix('lock-') for path in LOCKS]


@pytest.mark.parametrize('lock', LOCKS, ids=lambda path: path.stem)
def test_every_requirement_is_pinned_within_its_range(lock):
    pins = read(lock)
    files = ('requirements.txt', 'test.txt', lock.name.replace('lock-', 'ros-'))
    wanted = {n: r for file in files for n, r in read(TOOLS / file).items()}
    for name, requirement in wanted.items():
        assert name in pins, f'{lock.name} lacks {name}: make lock'
        (pin,) = pins[name].specifier
        fits = requirement.specifier.contains(pin.version)
        assert fits, f'{pins[name]} is not {requirement}: make lock'


@pytest.mark.parametrize('lock', LOCKS, ids=lambda path: path.stem)
def test_every_pin_is_one_public_version(lock):
    for pin in read(lock).values():
        assert re.fullmatch(r'==[\w.]+', str(pin.specifier)), f'{pin} is a build, or no pin'
        assert not (pin.url or pin.extras), pin
