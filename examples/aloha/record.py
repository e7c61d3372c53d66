"""The expert's episodes of TransferCube as recordings (`examples/common/recording.py`).

Run it: `tools/env python examples/aloha/record.py OUT.mcap`.
"""

from __future__ import annotations

import link

import recording

TASK = recording.Task(
    robot=link.ROBOT,
    instruction='transfer the red cube',
    done='passed on',
    longest=8.0,
    disturbed=(0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12),  # all but fingers
    open=link.world,
)


def main() -> None:
    """The command."""
    recording.run(TASK, __doc__.splitlines()[0], episodes=400)


if __name__ == '__main__':
    main()
