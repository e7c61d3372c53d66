"""Points that are measured, a JSON file each, so that a run that was cut off goes on.

The name of a file has a digest of all that its figures depend on, the policy's weights among it:
figures of other conditions lie beside it, and none is taken for another's. Knows files. Does not
know how a point is measured.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from benchmarks.latency.points import Conditions, Episodes, Point
from embodied_kv.storage import replaced

COLUMNS = tuple(f.name for f in fields(Episodes) if f.name not in ('families', 'outcomes'))


@dataclass(frozen=True)
class Store:
    """The points of some weights under some conditions. weights: digest of the policy's."""

    folder: Path
    conditions: Conditions
    weights: str

    def path(self, point: Point) -> Path:
        """Where a point is, or will be."""
        digest = hashlib.sha256(json.dumps(self._settings(point)).encode()).hexdigest()[:12]
        latency = f'{point.latency_ms:g}ms' + f'-{100 * point.spread:g}' * bool(point.spread)
        return self.folder / f'{point.way}-{latency}-{point.euler_steps}steps-{digest}.json'

    def has(self, point: Point) -> bool:
        return self.path(point).exists()

    def read(self, point: Point) -> Episodes:
        """A point that it has."""
        found = json.loads(self.path(point).read_text())['episodes']
        columns = {name: np.array(found[name], np.float64) for name in COLUMNS}
        return Episodes(tuple(found['families']), outcomes=found['outcomes'], **columns)

    def write(self, point: Point, episodes: Episodes) -> None:
        """All of it, or nothing."""
        columns = {
            name: [None if math.isnan(x) else x for x in getattr(episodes, name).tolist()]
            for name in COLUMNS
        }
        kept = dict(families=episodes.families, outcomes=episodes.outcomes) | columns
        self.folder.mkdir(parents=True, exist_ok=True)
        with replaced(self.path(point)) as new:
            new.write_text(json.dumps(dict(settings=self._settings(point), episodes=kept)) + '\n')

    def _settings(self, point: Point) -> dict:
        """All that the point's figures depend on; how others are guided is none of it."""
        guidance = asdict(self.conditions.chunking(point))
        shared = asdict(self.conditions) | dict(guidance=guidance, weights=self.weights)
        return asdict(point) | shared
