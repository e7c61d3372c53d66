"""How long an engine takes for a batch: measured once, kept as YAML, read where work is placed.

Knows sizes and seconds. Does not know the engine.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

GAIN = 0.15  # a larger batch is worth its latency from this much more throughput on
KEYS = {'engine', 'sizes', 'seconds', 'chunk_bytes'}


class ProfileError(ValueError):
    """A profile that cannot be used, with the file and the reason."""


@dataclass(frozen=True)
class Profile:
    """Seconds of a batch by its size, sizes rising from 1; chunk_bytes: of one robot's answer."""

    engine: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    chunk_bytes: int

    def __post_init__(self) -> None:
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in self.sizes)
        if not whole or not self.sizes or self.sizes[0] != 1 or not _rise(self.sizes):
            raise ProfileError(f'sizes {list(self.sizes)}: whole numbers that rise from 1')
        if len(self.seconds) != len(self.sizes):
            raise ProfileError(f'{len(self.seconds)} seconds for {len(self.sizes)} sizes')
        numbers = all(isinstance(s, (int, float)) and math.isfinite(s) for s in self.seconds)
        if not numbers or self.seconds[0] <= 0 or list(self.seconds) != sorted(self.seconds):
            raise ProfileError(f'seconds {list(self.seconds)}: positive and never falling')
        if not isinstance(self.chunk_bytes, int) or self.chunk_bytes < 1:
            raise ProfileError(f'chunk_bytes {self.chunk_bytes!r}: a whole number of at least 1')

    @cached_property
    def saturation(self) -> int:
        """The batch that is filled at most (section 3.2.2).

        The first measured size whose successor serves less than 15% more per second.
        """
        rates = [n / s for n, s in zip(self.sizes, self.seconds, strict=True)]
        for i, (rate, larger) in enumerate(zip(rates, rates[1:], strict=False)):
            if larger < (1 + GAIN) * rate:
                return self.sizes[i]
        return self.sizes[-1]

    def latency(self, batch: int) -> float:
        """Seconds of a batch, linear between what was measured. Raises ValueError above that."""
        sizes, seconds = self.sizes, self.seconds
        if not 1 <= batch <= sizes[-1]:
            raise ValueError(
                f'a batch of {batch}: {self.engine} was measured from 1 to {sizes[-1]}'
            )
        i = bisect_left(sizes, batch)
        if sizes[i] == batch:
            return seconds[i]
        share = (batch - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        return seconds[i - 1] + share * (seconds[i] - seconds[i - 1])

    def faster(self, times: float, engine: str) -> Profile:
        """The profile of an engine that needs so many times less."""
        return Profile(
            engine, self.sizes, tuple(s / times for s in self.seconds), self.chunk_bytes
        )


def _rise(numbers: tuple[int, ...]) -> bool:
    return all(a < b for a, b in zip(numbers, numbers[1:], strict=False))


def read(path: str | Path) -> Profile:
    """The profile in a YAML file. Raises ProfileError with the file's name and the reason."""
    try:
        found = yaml.safe_load(Path(path).read_text())
        if not isinstance(found, dict) or found.keys() != KEYS:
            raise ProfileError(f'it must have the keys {", ".join(sorted(KEYS))} and no others')
        if not isinstance(found['sizes'], list) or not isinstance(found['seconds'], list):
            raise ProfileError('sizes and seconds are lists')
        return Profile(
            str(found['engine']),
            tuple(found['sizes']),
            tuple(found['seconds']),
            found['chunk_bytes'],
        )
    except (OSError, yaml.YAMLError, ProfileError, UnicodeDecodeError) as error:
        raise ProfileError(f'{path}: {error}') from error


def write(profile: Profile, path: str | Path) -> None:
    """Writes it so that `read` gives it back."""
    content = dict(
        engine=profile.engine,
        sizes=list(profile.sizes),
        seconds=list(profile.seconds),
        chunk_bytes=profile.chunk_bytes,
    )
    Path(path).write_text(yaml.safe_dump(content, sort_keys=False))
