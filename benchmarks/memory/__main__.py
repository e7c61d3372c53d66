"""`python -m benchmarks.memory`: lists the benchmarks, each of which is a command."""

from benchmarks import memory
from benchmarks.common.command import overview

if __name__ == '__main__':
    overview('memory', memory.__doc__)
