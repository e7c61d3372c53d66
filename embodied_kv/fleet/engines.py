"""The engines of a fleet as the server sees them: what each is doing, and whether it lives.

Knows profiles, links and work in flight. Does not know what is generated, nor who asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.scheduler import Waiting

PATIENCE, GRACE = 4.0, 0.5  # an answer is overdue after 4 x its estimate + 0.5 s
DEPTH = 4  # batches on their way to an engine behind a link


@dataclass(frozen=True)
class Link:
    """A network: base latency of one way, s, and bytes per second to the engine and back."""

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
    """A batch that goes to an engine; number: given once, never again."""

    number: int
    engine: str
    batch: tuple[Waiting, ...]
    sent: float
    overdue: float


@dataclass(eq=False)
class EngineState:
    """One engine. link: beyond the edge's gateway, None at the edge itself.

    in_flight: what it has not answered yet, by number. free_at: when its computing is expected to
    end, s on the server's clock.
    """

    name: str
    profile: Profile
    link: Link | None = None
    alive: bool = True
    free_at: float = 0.0
    in_flight: dict[int, Dispatch] = field(default_factory=dict)

    def estimate(self, batch: int, size: float = 0.0) -> float:
        """Seconds from dispatch to answer of so many requests, of so many bytes in all."""
        if self.link is None:
            return self.profile.latency(batch)
        back = self.link.download_time(batch * self.profile.chunk_bytes)
        return self.link.upload_time(size) + self.profile.latency(batch) + back

    def opens(self) -> float:
        """When it may take a batch: at the edge when idle, else so that it arrives when idle."""
        if self.link is None:
            return self.free_at if self.in_flight else 0.0
        return self.free_at - self.link.latency

    def open(self, now: float) -> bool:
        """Whether it takes a batch now. The dead, and those who owe an answer, get nothing."""
        if not self.alive or len(self.in_flight) >= (1 if self.link is None else DEPTH):
            return False
        return not self.in_flight or self.opens() <= now

    def send(self, number: int, batch: list[Waiting], now: float) -> Dispatch:
        """Notes that it got a batch."""
        size = sum(request.bytes for request in batch)
        arrives = now + (self.link.upload_time(size) if self.link else 0.0)
        self.free_at = max(self.free_at, arrives) + self.profile.latency(len(batch))
        expected = max(self.free_at - now, self.estimate(len(batch), size))
        overdue = now + PATIENCE * expected + GRACE
        dispatch = Dispatch(number, self.name, tuple(batch), now, overdue)
        self.in_flight[number] = dispatch
        return dispatch

    def done(self, number: int, now: float) -> Dispatch | None:
        """It answered, so it lives. None for a number that was taken back from it."""
        self.alive = True
        dispatch = self.in_flight.pop(number, None)
        if not self.in_flight:
            self.free_at = min(self.free_at, now)
        return dispatch

    def lose(self) -> list[Dispatch]:
        """It is dead, or owes an answer: gives up what it had, gets nothing until it speaks."""
        self.alive, taken = False, list(self.in_flight.values())
        self.in_flight.clear()
        self.free_at = 0.0
        return taken
