"""`python -m embodied_kv.bench.memory`: says which benchmarks there are, each a command."""

from embodied_kv.bench import memory
from embodied_kv.bench.common.command import overview

if __name__ == '__main__':
    overview('memory', memory.__doc__)
