"""The temporary folder of this test process, and contracts in it.

Files that killed processes leave behind are in this folder, and the test process removes it.
"""

import os
import tempfile
from pathlib import Path

import yaml

from embodied_kv.robots.reading import SHIPPED

_FOLDER = tempfile.TemporaryDirectory(prefix='embodied_kv_test_')
FOLDER = Path(_FOLDER.name)
os.environ['TMPDIR'] = tempfile.tempdir = _FOLDER.name


def loose_contract():
    """Return the path of a tabletop contract with no effective limit of the tracking error."""
    contract = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text())
    for joint in contract['limits'].values():
        joint['tracking_error'] = 100.0
    path = FOLDER / 'loose.yaml'  # always this path: the engine of a process has one contract
    path.write_text(yaml.safe_dump(contract))
    return str(path)
