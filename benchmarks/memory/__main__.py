"""`python -m benchmarks.memory`: says which benchmarks there are, each a command."""

from benchmarks import memory
from benchmarks.common.command import overview

if __name__ == '__main__':
    overview('memory', memory.__doc__)
