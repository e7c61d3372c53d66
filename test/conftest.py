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


def pytest_addoption(parser):
    parser.addoption(
        '--device',
        choices=('cpu', 'hostile'),
        default='cpu',
        help='see embodied_kv/bench/common/hostile_device.py',
    )


@pytest.fixture(autouse=True)
def device_of_the_run(request):
    """The device that `--device` names: of a hostile one, tests find NaN and late streams."""
    if request.config.getoption('device') == 'cpu':
        yield None
        return
    from embodied_kv.bench.common.hostile_device import HostileDevice

    with HostileDevice() as device:
        yield device


def pytest_configure(config):
    config.addinivalue_line(
        'markers', 'at_once: holds where a device does at once what is launched; not if it is late'
    )


@pytest.hookimpl(tryfirst=True)  # xdist reads the mark in the same hook
def pytest_collection_modifyitems(config, items):
    late = config.getoption('device') == 'hostile'
    for item in items:
        together = 'nodes' if item.path.is_relative_to(IN_TIME) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(together))
        if late and item.get_closest_marker('at_once'):
            item.add_marker(pytest.mark.skip(reason='a hostile device is late'))
