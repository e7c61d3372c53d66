"""Selects the device that tests run on."""

import pytest


def pytest_addoption(parser):
    parser.addoption(
        '--device',
        choices=('cpu', 'hostile'),
        default='cpu',
        help='see benchmarks/common/hostile_device.py',
    )


@pytest.fixture(autouse=True)
def device_of_the_run(request):
    """Yield the device of `--device`; a hostile one has NaN in unused memory and late streams."""
    if request.config.getoption('device') == 'cpu':
        yield None
        return
    from benchmarks.common.hostile_device import HostileDevice

    with HostileDevice() as device:
        yield device


def pytest_configure(config):
    config.addinivalue_line(
        'markers', 'at_once: holds where a device does at once what is launched; not if it is late'
    )


def pytest_collection_modifyitems(config, items):
    if config.getoption('device') == 'cpu':
        return
    for item in items:
        if item.get_closest_marker('at_once'):
            item.add_marker(pytest.mark.skip(reason='a hostile device is late'))
