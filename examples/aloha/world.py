"""Run gym-aloha's TransferCube as a process of its environment (`examples/common/process.py`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / 'common'))
import expert
from two_arms import TwoArms

from process import serve


def answer(arms: TwoArms, request: dict) -> dict:
    """Answer a request: `reset` (seed), `step` (joints) or `expert`.

    The first two return the observation with the true position of the cube, the last one the
    expert's command.
    """
    if request['do'] == 'expert':
        return {'joints': expert.command(arms)}
    if request['do'] == 'reset':
        arms.reset(request['seed'])
    else:
        arms.step(request['joints'])
    truth = {'cube': arms.cube[0], 'pixels': arms.cube_pixels()}
    return {**vars(arms.see()), 'done': arms.is_passed, **truth}


def begin(size: int) -> tuple[dict, Callable[[dict], dict]]:
    """Return the first message, and the function that answers requests."""
    arms = TwoArms(size)
    return {'ranges': arms.ranges}, lambda request: answer(arms, request)


def main() -> None:
    """Parse the command line and serve the world."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--size', type=int, default=96, help="pixels of a picture's side")
    told = parser.parse_args()
    serve(lambda: begin(told.size))


if __name__ == '__main__':
    main()
