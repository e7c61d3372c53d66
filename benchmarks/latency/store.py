"""The measured points, a JSON file each, so that an interrupted run can continue.

The file name contains a digest of everything that the figures depend on, including the weights of
the policy, so figures of different conditions are stored in the same folder without being mixed
up. Knows files. Does not know how a point is measured.
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
    """The points of one policy under some conditions. weights: digest of the policy's weights."""

    folder: Path
    conditions: Conditions
    weights: str

    def path(self, point: Point) -> Path:
        """Return the path of the file of a point, which may not exist yet."""
        digest = hashlib.sha256(json.dumps(self._settings(point)).encode()).hexdigest()[:12]
        latency = f'{point.latency_ms:g}ms' + f'-{100 * point.spread:g}' * bool(point.spread)
        return self.folder / f'{point.way}-{latency}-{point.euler_steps}steps-{digest}.json'

    def has(self, point: Point) -> bool:
        return self.path(point).exists()

    def read(self, point: Point) -> Episodes:
        """Return the episodes of a stored point."""
        found = json.loads(self.path(point).read_text())['episodes']
        columns = {name: np.array(found[name], np.float64) for name in COLUMNS}
        return Episodes(tuple(found['families']), outcomes=found['outcomes'], **columns)

    def write(self, point: Point, episodes: Episodes) -> None:
        """Write the episodes of a point atomically."""
        columns = {
            name: [None if math.isnan(x) else x for x in getattr(episodes, name).tolist()]
            for name in COLUMNS
        }
        kept = dict(families=episodes.families, outcomes=episodes.outcomes) | columns
        self.folder.mkdir(parents=True, exist_ok=True)
        with replaced(self.path(point)) as new:
            new.write_text(json.dumps(dict(settings=self._settings(point), episodes=kept)) + '\n')

    def _settings(self, point: Point) -> dict:
        """Return everything that the figures of a point depend on.

        Parameters of guidance count only where the way of the point is guided.
        """
        guidance = asdict(self.conditions.chunking(point))
        shared = asdict(self.conditions) | dict(guidance=guidance, weights=self.weights)
        return asdict(point) | shared
