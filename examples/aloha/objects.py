"""Add the position of the cube to a data set of TransferCube (`examples/common/columns.py`).

Run it: `tools/env python examples/aloha/objects.py transfer.mcap SET`.
"""

from __future__ import annotations

import link

import columns

if __name__ == '__main__':
    columns.run(link.ROBOT, __doc__.splitlines()[0])
