"""The session of a robot that is served in batches: a restore brings back its newest row.

Knows that rows are kept between rounds, and the robot's share of streams. Does not know batches,
nor what the robot executes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.engine.compression import ACTION
from embodied_kv.engine.engine import Engine
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.serving.batch import KeptRows
from embodied_kv.serving.shares import StreamShares
from embodied_kv.session.engine_part import Branch, EnginePart


class ServedPart(EnginePart):
    """Where no row is kept of the robot, a capsule has none, and a restore leaves what there is.

    Streams go on within the robot's share, so that none of another robot ends for them. Everything
    here runs on the engine's thread, between two batches.
    """

    def __init__(self, engine: Engine, robot: str, kept: KeptRows, shares: StreamShares) -> None:
        super().__init__(engine, robot)
        self._kept, self._shares = kept, shares

    def check(self, frozen: FrozenPart, branches: int = 1) -> None:
        """As a session; NoShare for more streams than the robot may have."""
        super().check(frozen, branches)
        if streams := len(frozen.facts['streams']) * branches:
            self._shares.check(self.robot, streams)
        copy = frozen.facts['action']
        if copy is not None and not self._kv.compressed.has_room(
            [sum(frozen.facts['rows'][copy]['budgets'])]
        ):
            raise CapsuleError('no room for a compressed prefix: raise engine.compressed_rows')

    def branch(self, frozen: FrozenPart, branches: Sequence[Branch]) -> list[list[DecodeStream]]:
        """As a session; where the robot's share is full, its oldest streams end for them."""
        streams = len(frozen.facts['streams']) * len(branches)
        if not streams:
            return super().branch(frozen, branches)
        with self._shares.room(self.robot, streams):
            return super().branch(frozen, branches)

    def resume(self, frozen: FrozenPart) -> None:
        """As a session; and the frozen row is the robot's newest one, until its next round."""
        for stream in self.streams():  # first: they may fill its share
            self._kv.streams.release(stream, 'replaced')
        super().resume(frozen)
        number, copy = frozen.facts['current'], frozen.facts['action']
        if number is None:
            return
        facts = frozen.facts['rows'][number]
        frame = {name: facts[name] for name in ('sequence', 'stamp')} | {'robot': self.robot}
        with self._written(frozen, number) as row:
            handle = self._kv.frames.commit(row, facts['length'], deadline=-math.inf, **frame)
        self._kept.keep(self._kv.acquire(handle))
        if copy is not None:
            self._kv.keep_copy([ACTION], self._adopt_copy(frozen, copy, handle))
