"""The other end of `process.py`: a simulated world, used from this package's environment.

Starts the world in its own environment and checks that the contract does not allow the joints more
than the robot's model does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.websocket import codec

PATIENCE = 10.0  # s that the process has to exit before it is killed
ENDED = 'the world has ended: it says why above'
ROUNDED = 1e-4  # rad, rounding difference of the two files


class World:
    """A simulated world in a process that runs until it is closed. size: side of an image, pixels.

    folder: of the example, which has `world.py` and `setup`; python: of the simulator. Raises
    RuntimeError with the remedy if the process cannot start or has ended.
    """

    def __init__(self, robot: Embodiment, size: int, folder: Path, python: Path) -> None:
        if not python.exists():
            raise RuntimeError(f'{python} is missing: run examples/{folder.name}/setup')
        command = [python, folder / 'world.py', '--size', str(size)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        try:
            check_limits(robot, self._hear()['ranges'])
        except Exception:
            self.close()
            raise

    def reset(self, seed: int) -> dict:
        """Reset to the start of a seed and return the observation.

        time: s; joints, speeds [J] in SI, in the contract's order; pictures by view; done; cube:
        [3] m; pixels: its column and row by view.
        """
        return self._ask(do='reset', seed=seed)

    def step(self, joints: np.ndarray) -> dict:
        """Take one period and return the observation. joints: [J] in SI."""
        return self._ask(do='step', joints=np.asarray(joints, np.float64))

    def expert(self) -> np.ndarray:
        """Return the current command of the expert, [J] in SI."""
        return self._ask(do='expert')['joints']

    def close(self) -> None:
        """End the process; kill it if it does not exit in time."""
        with suppress(BrokenPipeError):  # a request was not read
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, **request: object) -> dict:
        data = codec.pack(request)
        try:
            self._process.stdin.write(len(data).to_bytes(4, 'big') + data)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError(ENDED) from error
        return self._hear()

    def _hear(self) -> dict:
        out = self._process.stdout
        head = out.read(4)
        if len(head) < 4:
            raise RuntimeError(ENDED)
        data = out.read(size := int.from_bytes(head, 'big'))
        if len(data) < size:
            raise RuntimeError(ENDED)
        return codec.unpack(data)


def check_limits(robot: Embodiment, ranges: Sequence[tuple[float, float]]) -> None:
    """Raise RuntimeError if the contract allows more than the robot's model.

    ranges: limits of the model for the contract's joints, in their order, or for the first of
    them, [J, 2].
    """
    limits = robot.contract.limits
    for joint, (lower, upper) in zip(robot.joints, ranges, strict=False):
        mine = limits[joint].position
        if mine is None or mine[0] < lower - ROUNDED or mine[1] > upper + ROUNDED:
            raise RuntimeError(
                f'{joint} may move within {mine} by the contract, but within '
                f'({lower:.4f}, {upper:.4f}) by the robot: correct the contract'
            )
