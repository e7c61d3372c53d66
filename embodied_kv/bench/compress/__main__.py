"""`python -m embodied_kv.bench.compress`: says which benchmarks there are, each a command."""

from embodied_kv.bench import compress
from embodied_kv.bench.common.command import overview

if __name__ == '__main__':
    overview('compress', compress.__doc__)
