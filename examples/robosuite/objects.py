"""Add the position of the cube to a data set of Lift (`examples/common/columns.py`).

Run it: `tools/env python examples/robosuite/objects.py lift.mcap SET`.
"""

from __future__ import annotations

import link

import columns

if __name__ == '__main__':
    columns.run(link.ROBOT, __doc__.splitlines()[0])
