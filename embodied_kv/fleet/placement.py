"""Which engine serves whom: the edge first, the cloud where its estimate is lower.

A pure decision on what the engines' profiles, links and work in flight say. Source: Kairos,
section 3.2.3 and Algorithm 1, phase 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.scheduler import Waiting


def place(
    queue: Sequence[Waiting], engines: Sequence[EngineState], now: float
) -> list[tuple[EngineState, list[Waiting]]]:
    """Batches for engines that are open, out of a queue in order of priority.

    An open edge takes the front of the queue, up to its saturation. Of the others, in order, an
    open cloud takes whoever it answers sooner than the edge would, network included: the edge's
    estimate counts those who stay before them. Without a living edge it takes them all.
    """
    edges = [engine for engine in engines if engine.alive and engine.link is None]
    clouds = [engine for engine in engines if engine.link is not None and engine.open(now)]
    placed, rest = [], list(queue)
    for engine in edges:
        if rest and engine.open(now):
            room = engine.profile.saturation
            placed.append((engine, rest[:room]))
            rest = rest[room:]
    if not clouds or not rest:
        return placed
    busy = {id(engine): len(batch) for engine, batch in placed}
    delays = _Delays(edges, busy, now)
    for cloud in clouds:
        rest, batch = _overflow(rest, cloud, delays, now)
        if batch:
            placed.append((cloud, batch))
    return placed


def _overflow(
    rest: list[Waiting], cloud: EngineState, delays: _Delays, now: float
) -> tuple[list[Waiting], list[Waiting]]:
    """Who stays, and who goes to this cloud."""
    stay: list[Waiting] = []
    go: list[Waiting] = []
    size = 0
    queued = max(cloud.opens() - now, 0.0) if cloud.in_flight else 0.0
    for i, request in enumerate(rest):
        if len(go) == cloud.profile.saturation:
            return stay + rest[i:], go
        estimate = queued + cloud.estimate(len(go) + 1, size + request.bytes)
        if estimate < delays.after(len(stay)):
            go.append(request)
            size += request.bytes
        else:
            stay.append(request)
    return stay, go


class _Delays:
    """Until the edge would have answered one with so many before it; infinite without an edge."""

    def __init__(self, edges: Sequence[EngineState], busy: dict[int, int], now: float) -> None:
        self.turns = []  # per edge: seconds until it is free, its batch, seconds of a batch
        for engine in edges:
            free = max(engine.opens() - now, 0.0)
            if id(engine) in busy:
                free = engine.profile.latency(busy[id(engine)])
            room = engine.profile.saturation
            self.turns.append((free, room, engine.profile.latency(room)))
        self.turns.sort()
        self.room = sum(room for _, room, _ in self.turns)

    def after(self, before: int) -> float:
        if not self.turns:
            return math.inf
        cycles, left = divmod(before, self.room)
        for free, room, seconds in self.turns:
            if left < room:
                return free + (cycles + 1) * seconds
            left -= room
        raise AssertionError('left is below the sum of all rooms')
