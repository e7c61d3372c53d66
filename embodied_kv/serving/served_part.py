"""The session of a robot that is served in batches: a restore brings back its newest row.

Knows that rows are kept between rounds. Does not know batches, nor what the robot executes.
"""

from __future__ import annotations

import math

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.part import FrozenPart
from embodied_kv.engine.compression import ACTION
from embodied_kv.engine.engine import Engine
from embodied_kv.serving.batch import KeptRows
from embodied_kv.session.engine_part import EnginePart


class ServedPart(EnginePart):
    """Where no row is kept of the robot, a capsule has none, and a restore leaves what there is.

    Everything here runs on the engine's thread, between two batches.
    """

    def __init__(self, engine: Engine, robot: str, kept: KeptRows) -> None:
        super().__init__(engine, robot)
        self._kept = kept

    def check(self, frozen: FrozenPart, branches: int = 1) -> None:
        super().check(frozen, branches)
        copy = frozen.facts['action']
        if copy is not None and not self._kv.compressed.has_room(
            [sum(frozen.facts['rows'][copy]['budgets'])]
        ):
            raise CapsuleError('no room for a compressed prefix: raise engine.compressed_rows')

    def resume(self, frozen: FrozenPart) -> None:
        """As a session; and the frozen row is the robot's newest one, until its next round."""
        super().resume(frozen)
        number, copy = frozen.facts['current'], frozen.facts['action']
        if number is None:
            return
        facts = frozen.facts['rows'][number]
        handle = self._kv.frames.commit(
            self._written(frozen, number),
            facts['length'],
            robot=self.robot,
            sequence=facts['sequence'],
            stamp=facts['stamp'],
            deadline=-math.inf,
        )
        self._kept.keep(self._kv.acquire(handle))
        if copy is not None:
            self._kv.keep_copy([ACTION], self._adopt_copy(frozen, copy, handle))
