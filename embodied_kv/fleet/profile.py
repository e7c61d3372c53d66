"""The latency of an engine by batch size: measured once, stored as YAML, read for placement."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import yaml

GAIN = 0.15  # a larger batch is worth its latency for at least this much more throughput


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the file and the reason."""


@dataclass(frozen=True)
class Profile:
    """Seconds of a batch by its size.

    `sizes` rise from 1, `seconds` never fall, and `chunk_bytes` is the size of one answer.
    """

    engine: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    chunk_bytes: int

    def __post_init__(self) -> None:
        sizes, seconds = self.sizes, self.seconds
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in sizes)
        if not whole or sizes[:1] != (1,) or any(a >= b for a, b in pairwise(sizes)):
            raise ProfileError(f'sizes must be whole numbers that rise from 1 (got {list(sizes)})')
        if len(seconds) != len(sizes):
            raise ProfileError(f'seconds must have {len(sizes)} entries (got {len(seconds)})')
        numbers = all(isinstance(s, (int, float)) and math.isfinite(s) for s in seconds)
        if not numbers or seconds[0] <= 0 or list(seconds) != sorted(seconds):
            raise ProfileError(f'seconds must be positive and never falling (got {list(seconds)})')
        if not isinstance(self.chunk_bytes, int) or self.chunk_bytes < 1:
            raise ProfileError(
                f'chunk_bytes must be a whole number of at least 1 (got {self.chunk_bytes!r})'
            )

    @cached_property
    def saturation(self) -> int:
        """The largest batch that is filled (Kairos, section 3.2.2).

        The first measured size whose successor serves less than 15% more requests per second.
        """
        rates = [n / s for n, s in zip(self.sizes, self.seconds, strict=True)]
        for i, (rate, larger) in enumerate(pairwise(rates)):
            if larger < (1 + GAIN) * rate:
                return self.sizes[i]
        return self.sizes[-1]

    def latency(self, batch: int) -> float:
        """Return the seconds of a batch, interpolated between measurements. Raises ValueError."""
        sizes, seconds = self.sizes, self.seconds
        if not 1 <= batch <= sizes[-1]:
            raise ValueError(
                f'batch must be from 1 to {sizes[-1]}, as measured of {self.engine} (got {batch})'
            )
        i = bisect_left(sizes, batch)
        if sizes[i] == batch:
            return seconds[i]
        share = (batch - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        return seconds[i - 1] + share * (seconds[i] - seconds[i - 1])

    def faster(self, times: float, engine: str) -> Profile:
        """Return the profile of an engine that is `times` as fast."""
        return replace(self, engine=engine, seconds=tuple(s / times for s in self.seconds))


def read(path: str | Path) -> Profile:
    """Return the profile in a YAML file. Raises ProfileError with its name and the reason."""
    names = [field.name for field in fields(Profile)]
    try:
        found = yaml.safe_load(Path(path).read_text())
        if not isinstance(found, dict) or found.keys() != set(names):
            raise ProfileError(f'the file must have the keys {", ".join(names)} and no others')
        if not isinstance(found['sizes'], list) or not isinstance(found['seconds'], list):
            raise ProfileError('sizes and seconds must be lists')
        sizes, seconds = tuple(found['sizes']), tuple(found['seconds'])
        return Profile(str(found['engine']), sizes, seconds, found['chunk_bytes'])
    except (OSError, yaml.YAMLError, ProfileError, UnicodeDecodeError) as error:
        raise ProfileError(f'{path}: {error}') from error


def write(profile: Profile, path: str | Path) -> None:
    content = {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(profile).items()}
    Path(path).write_text(yaml.safe_dump(content, sort_keys=False))
