"""Drive robosuite's Lift with openpi's client and a policy server (`examples/common/trial.py`).

Run it while `python -m embodied_kv.serving --contract examples/robosuite/lift.yaml …` runs:
`.venv-robosuite/bin/python examples/robosuite/eval.py --latency 0 100 200`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / 'common'))
from panda_lift import FPS, INSTRUCTION, OPEN, PandaLift

import trial


class Lift:
    """The arm as a trial needs it: joints in rad, fingers from 0 (open) to 1."""

    rate, ticks, seconds = FPS, 1, 10.0
    stages: dict[str, int] = {}

    def __init__(self, size: int) -> None:
        self._lift = PandaLift(size)

    @property
    def steps(self) -> int:
        return self._lift.steps

    @property
    def done(self) -> bool:
        return self._lift.is_lifted

    def reset(self, seed: int) -> np.ndarray:
        self._lift.reset(seed)
        return np.append(self._lift.joints, 0.0)  # fingers open

    def request(self) -> dict:
        seen = self._lift.see()
        return {
            'observation/image': seen.pictures['front'],
            'observation/wrist_image': seen.pictures['wrist'],
            'observation/joint_position': seen.joints,
            'observation/gripper_position': np.array([1 - seen.finger / OPEN]),
            'prompt': INSTRUCTION,
        }

    def step(self, action: np.ndarray) -> None:
        self._lift.step(action[:7], OPEN * (1 - action[7]))

    def pictures(self) -> list[np.ndarray]:
        return list(self._lift.see().pictures.values())


def main() -> None:
    """Parse the command line and run the trial."""
    trial.run(Lift, __doc__.splitlines()[0], 'lift', 'lifted', every=4)


if __name__ == '__main__':
    main()
