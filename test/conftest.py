"""How tests share two cores: those that keep a robot's time in one process, others beside it.

Those of a file stay together. No example of a property is too slow.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile('busy', deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('busy')  # unless another one is asked for
os.environ.setdefault('OMP_NUM_THREADS', '1')  # a core each, in what tests start as well
IN_TIME = Path(__file__).parent / 'nodes'


@pytest.hookimpl(tryfirst=True)  # xdist reads the mark in the same hook
def pytest_collection_modifyitems(items):
    for item in items:
        together = 'nodes' if item.path.is_relative_to(IN_TIME) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(together))
