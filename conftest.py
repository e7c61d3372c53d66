"""Settings of all tests: `test`, `benchmarks/test` and `training/test`."""

import os

from hypothesis import HealthCheck, settings

# Machines may be busy: no example of a property is too slow.
settings.register_profile('busy', deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('busy')  # unless another one is asked for
os.environ.setdefault('OMP_NUM_THREADS', '1')  # one core each, in started processes too
os.environ.setdefault('HF_HUB_OFFLINE', '1')  # no test waits for a hub that is not there
