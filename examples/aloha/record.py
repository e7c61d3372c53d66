"""Record the expert's episodes of TransferCube (`examples/common/recording.py`).

Run it: `tools/env python examples/aloha/record.py OUT.mcap`.
"""

from __future__ import annotations

import link

import recording

ARMS = 0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12  # all but fingers
TASK = recording.Task(
    robot=link.ROBOT,
    instruction='transfer the red cube',
    done='passed on',
    longest=10.0,
    disturbed=recording.Disturbed(ARMS, calm=0.2, wander=0.006, kick=0.08, often=0.5),
    open=link.world,
)


def main() -> None:
    """Parse the command line and record."""
    recording.run(TASK, __doc__.splitlines()[0], episodes=300)


if __name__ == '__main__':
    main()
