"""The engines of a fleet as the server models them, and the placement of requests on them.

Placement is a pure function of profiles, links and batches in flight.
Source: Kairos, section 3.2.3 and Algorithm 1, phase 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.schedulers import Waiting

PATIENCE, GRACE = 4.0, 0.5  # an answer is overdue after 4 x its estimate + 0.5 s
DEPTH = 4  # batches in flight to an engine behind a link


@dataclass(frozen=True)
class Link:
    """A network: one-way base latency, s, and bytes per second to the engine and back."""

    latency: float
    up: float
    down: float

    def __post_init__(self) -> None:
        if self.latency < 0 or self.up <= 0 or self.down <= 0:
            raise ValueError(f'latency must be at least 0 and bandwidths above 0 (got {self})')

    def upload_time(self, size: float) -> float:
        return self.latency + size / self.up

    def download_time(self, size: float) -> float:
        return self.latency + size / self.down


@dataclass(frozen=True, eq=False)
class Dispatch:
    """A batch that is sent to an engine; its number is unique."""

    number: int
    engine: str
    batch: tuple[Waiting, ...]
    sent: float
    overdue: float


@dataclass(eq=False)
class EngineState:
    """One engine.

    `link` is the network beyond the edge's gateway, None for an engine at the edge. `in_flight`
    maps numbers to unanswered batches. `free_at` is the expected end of its computation, s.
    """

    name: str
    profile: Profile
    link: Link | None = None
    alive: bool = True
    free_at: float = 0.0
    in_flight: dict[int, Dispatch] = field(default_factory=dict)

    def estimate(self, batch: int, size: float = 0.0) -> float:
        """Return the seconds from dispatch to answer of `batch` requests with `size` bytes."""
        if self.link is None:
            return self.profile.latency(batch)
        back = self.link.download_time(batch * self.profile.chunk_bytes)
        return self.link.upload_time(size) + self.profile.latency(batch) + back

    def opens(self) -> float:
        """Return when to send a batch so that it arrives when the engine becomes idle."""
        if self.link is None:
            return self.free_at if self.in_flight else 0.0
        return self.free_at - self.link.latency

    def open(self, now: float) -> bool:
        """Return whether a batch may be sent now; never to an engine that is dead or overdue."""
        if not self.alive or len(self.in_flight) >= (1 if self.link is None else DEPTH):
            return False
        return not self.in_flight or self.opens() <= now

    def send(self, number: int, batch: list[Waiting], now: float) -> Dispatch:
        """Record that a batch is sent, and return it."""
        size = sum(request.bytes for request in batch)
        arrives = now + (self.link.upload_time(size) if self.link else 0.0)
        self.free_at = max(self.free_at, arrives) + self.profile.latency(len(batch))
        expected = max(self.free_at - now, self.estimate(len(batch), size))
        overdue = now + PATIENCE * expected + GRACE
        dispatch = Dispatch(number, self.name, tuple(batch), now, overdue)
        self.in_flight[number] = dispatch
        return dispatch

    def done(self, number: int, now: float) -> Dispatch | None:
        """Record an answer, which proves that the engine is alive.

        Returns the batch; None if it had been taken back from the engine.
        """
        self.alive = True
        dispatch = self.in_flight.pop(number, None)
        if not self.in_flight:
            self.free_at = min(self.free_at, now)
        return dispatch

    def lose(self) -> list[Dispatch]:
        """Mark the engine as dead until it answers; return the batches that it had."""
        self.alive, taken = False, list(self.in_flight.values())
        self.in_flight.clear()
        self.free_at = 0.0
        return taken


def place(
    queue: Sequence[Waiting], engines: Sequence[EngineState], now: float
) -> list[tuple[EngineState, list[Waiting]]]:
    """Return batches for engines that are open, from a queue in order of priority.

    An open edge engine takes the front of the queue, up to its saturation. Of the rest, in order,
    an open cloud engine takes each request that it answers sooner than the edge, including the
    network. The estimate of the edge counts the requests that stay before that one. Without a
    living edge engine, the cloud takes all.
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
    delays = _Delays(edges, {id(engine): len(batch) for engine, batch in placed}, now)
    for cloud in clouds:
        rest, batch = _overflow(rest, cloud, delays, now)
        if batch:
            placed.append((cloud, batch))
    return placed


def _overflow(
    rest: list[Waiting], cloud: EngineState, delays: _Delays, now: float
) -> tuple[list[Waiting], list[Waiting]]:
    """Return the requests that stay, and those for this cloud engine."""
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
    """Seconds until the edge has answered a request that has others before it."""

    def __init__(self, edges: Sequence[EngineState], busy: dict[int, int], now: float) -> None:
        self.turns = []  # per edge engine: s until it is free, batch size, s of a batch
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
