"""robosuite's Lift as a process: requests on stdin, what the robot sees on stdout.

Runs in the environment of robosuite. `link.py` is the other end, wherever that runs. A message is
its length (4 bytes, the first the highest) and msgpack, with arrays as openpi writes them.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import BinaryIO

import expert
from openpi_client import msgpack_numpy
from panda_lift import PandaLift


def answer(lift: PandaLift, request: dict) -> dict:
    """Of reset (seed) and step (joints, finger) what is seen then; of expert, what it would do.

    Where the cube is is told beside what the robot sees.
    """
    if request['do'] == 'expert':
        joints, finger = expert.command(lift)
        return {'joints': joints, 'finger': finger}
    if request['do'] == 'reset':
        lift.reset(request['seed'])
    else:
        lift.step(request['joints'], request['finger'])
    truth = {'cube': lift.cube, 'pixels': lift.cube_pixels()}
    return {**vars(lift.see()), 'lifted': lift.is_lifted, **truth}


def read(stream: BinaryIO) -> dict | None:
    """The next message; None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return msgpack_numpy.unpackb(stream.read(int.from_bytes(head, 'big')))


def write(stream: BinaryIO, message: dict) -> None:
    """All of it, at once."""
    data = msgpack_numpy.packb(message)
    stream.write(len(data).to_bytes(4, 'big') + data)
    stream.flush()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--size', type=int, default=96, help="pixels of a picture's side")
    told = parser.parse_args()
    out = os.fdopen(os.dup(1), 'wb')
    os.dup2(2, 1)  # whatever else prints here, prints there
    lift = PandaLift(told.size)
    write(out, {'ranges': lift.ranges})
    while (request := read(sys.stdin.buffer)) is not None:
        write(out, answer(lift, request))


if __name__ == '__main__':
    main()
