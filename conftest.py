"""Settings of all tests: `test`, `benchmarks/test` and `training/test`."""

import os

from hypothesis import HealthCheck, settings

# Machines may be busy, so no example of a property test is too slow.
settings.register_profile('busy', deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('busy')  # unless another profile is selected
os.environ.setdefault('OMP_NUM_THREADS', '1')  # one core each, also in subprocesses
os.environ.setdefault('HF_HUB_OFFLINE', '1')  # tests do not wait for an unreachable hub
