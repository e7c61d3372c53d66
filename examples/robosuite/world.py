"""robosuite's Lift as a process, in robosuite's environment (`examples/common/process.py`)."""

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
    """Of reset (seed) and step (joints, the last the finger) what is seen then; of expert, its.

    Where the cube is is told beside what the robot sees.
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
    """What is said first, and what answers requests."""
    lift = PandaLift(size)
    return {'ranges': lift.ranges}, lambda request: answer(lift, request)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--size', type=int, default=96, help="pixels of a picture's side")
    told = parser.parse_args()
    serve(lambda: begin(told.size))


if __name__ == '__main__':
    main()
