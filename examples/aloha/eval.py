"""Drive gym-aloha's TransferCube with openpi's client and a policy server (`../common/trial.py`).

Run it while `python -m embodied_kv.serving --contract examples/aloha/transfer.yaml …` runs:
`.venv-aloha/bin/python examples/aloha/eval.py --latency 0 100`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / 'common'))
from gym_aloha.constants import normalize_puppet_gripper_position as to_unit
from gym_aloha.constants import unnormalize_puppet_gripper_position as from_unit
from two_arms import DT, FINGERS, INSTRUCTION, SECONDS, TICKS, TwoArms

import trial

STAGES = {'touched': 1, 'raised': 2, 'met': 3, 'transferred': 4}  # gym-aloha's rewards


class Transfer:
    """Two arms as a trial needs them: joints in rad, grippers from 0 (closed) to 1."""

    rate, ticks, seconds = round(1 / DT), TICKS, SECONDS

    def __init__(self, size: int) -> None:
        self._arms = TwoArms(size)

    @property
    def steps(self) -> int:
        return self._arms.steps

    @property
    def done(self) -> bool:
        return self._arms.is_passed

    @property
    def stages(self) -> dict[str, int]:
        """The rewards by name, 1 for each that was reached."""
        return {name: int(self._arms.best >= reward) for name, reward in STAGES.items()}

    def reset(self, seed: int) -> np.ndarray:
        self._arms.reset(seed)
        return self._state(self._arms.joints)

    def request(self) -> dict:
        seen = self._arms.see()
        shown = {f'cam_{view}': p.transpose(2, 0, 1) for view, p in seen.pictures.items()}
        return {'state': self._state(seen.joints), 'images': shown, 'prompt': INSTRUCTION}

    def step(self, action: np.ndarray) -> None:
        joints = np.array(action, np.float64)
        joints[FINGERS] = from_unit(joints[FINGERS])
        self._arms.tick(joints)

    def pictures(self) -> list[np.ndarray]:
        return [self._arms.draw('angle'), *self._arms.see().pictures.values()]

    @staticmethod
    def _state(joints: np.ndarray) -> np.ndarray:
        state = joints.copy()
        state[FINGERS] = to_unit(state[FINGERS])
        return state


def main() -> None:
    """Parse the command line and run the trial."""
    trial.run(Transfer, __doc__.splitlines()[0], 'transfer', 'passed on', every=10)


if __name__ == '__main__':
    main()
