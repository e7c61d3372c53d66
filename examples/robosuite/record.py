"""Record the expert's episodes of Lift (`examples/common/recording.py`).

Run it: `tools/env python examples/robosuite/record.py OUT.mcap`.
"""

from __future__ import annotations

import link

import recording

TASK = recording.Task(
    robot=link.ROBOT,
    instruction='lift the red cube',
    done='lifted',
    longest=10.0,
    disturbed=recording.Disturbed(tuple(range(7)), calm=0.4, wander=0.005, kick=0.05, often=0.4),
    open=link.world,
)


def main() -> None:
    """Parse the command line and record."""
    recording.run(TASK, __doc__.splitlines()[0], episodes=240)


if __name__ == '__main__':
    main()
