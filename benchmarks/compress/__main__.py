"""`python -m benchmarks.compress`: print which benchmarks there are, each a command."""

from benchmarks import compress
from benchmarks.common.command import overview

if __name__ == '__main__':
    overview('compress', compress.__doc__)
