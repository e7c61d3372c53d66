"""Run robosuite's Lift as a process of robosuite's environment (`examples/common/process.py`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / 'common'))
import expert
import numpy as np
from panda_lift import PandaLift

from process import serve


def answer(lift: PandaLift, request: dict) -> dict:
    """Answer a request: `reset` (seed), `step` (joints, the last is the finger) or `expert`.

    The first two return the observation with the true position of the cube, the last one the
    expert's command.
    """
    if request['do'] == 'expert':
        return {'joints': np.append(*expert.command(lift))}
    if request['do'] == 'reset':
        lift.reset(request['seed'])
    else:
        lift.step(request['joints'][:7], request['joints'][7])
    seen = lift.see()
    return {
        'time': seen.time,
        'joints': np.append(seen.joints, seen.finger),
        'speeds': np.append(seen.speeds, 0.0),
        'pictures': seen.pictures,
        'done': lift.is_lifted,
        'cube': lift.cube,
        'pixels': lift.cube_pixels(),
    }


def begin(size: int) -> tuple[dict, Callable[[dict], dict]]:
    """Return the first message, and the function that answers requests."""
    lift = PandaLift(size)
    return {'ranges': lift.ranges}, lambda request: answer(lift, request)


def main() -> None:
    """Parse the command line and serve the world."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--size', type=int, default=96, help="pixels of a picture's side")
    told = parser.parse_args()
    serve(lambda: begin(told.size))


if __name__ == '__main__':
    main()
