"""gym-aloha's TransferCube, used from this package's environment (`examples/common/remote.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / 'common'))
from embodied_kv.robots.embodiment import Embodiment  # noqa: E402

import remote  # noqa: E402

CONTRACT = HERE / 'transfer.yaml'
PYTHON = HERE.parent.parent / '.venv-aloha' / 'bin' / 'python'
ROBOT = Embodiment.load(str(CONTRACT))


def world(size: int) -> remote.World:
    """With pictures of so many pixels. Raises RuntimeError that says what to do."""
    return remote.World(ROBOT, size, HERE, PYTHON)
