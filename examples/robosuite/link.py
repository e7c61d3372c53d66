"""robosuite's Lift, used from this package's environment (`examples/common/remote.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / 'common'))
from embodied_kv.robots.embodiment import Embodiment

from remote import World

HERE = Path(__file__).resolve().parent
CONTRACT = HERE / 'lift.yaml'
PYTHON = HERE.parent.parent / '.venv-robosuite' / 'bin' / 'python'
ROBOT = Embodiment.load(str(CONTRACT))


def world(size: int) -> World:
    """Open the world with images of `size` pixels. Raises RuntimeError with the remedy."""
    return World(ROBOT, size, HERE, PYTHON)
