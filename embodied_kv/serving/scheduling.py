"""The order in which a server serves its clients: ROS parameters, and options of the command."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import Field, dataclass, field
from pathlib import Path

from embodied_kv.fleet.fair import FairDeadline
from embodied_kv.fleet.policies import BUCKET_ORDERS, SCHEDULERS, Kairos, scheduler
from embodied_kv.fleet.profile import Profile, read
from embodied_kv.fleet.scheduler import Scheduler
from embodied_kv.fleet.trace_writer import TraceWriter


def _param(default: bool | int | float | str, help: str, **more: object) -> Field:
    return field(default=default, metadata={'help': help, 'when': 'configure', **more})


@dataclass(frozen=True)
class SchedulingConfig:
    """The scheduler and its settings. Raises ValueError."""

    scheduler: str = _param(
        'deadline',
        'Clients that are served first: deadline (the earliest deadline, with equal shares for '
        'all keys), kairos (the largest share of its task waited), fifo, autellix (the least '
        'service so far) or shortest (the shortest execution). All but deadline expect clients '
        'that trust each other',
    )
    buckets: int = _param(10, 'Buckets of the wait ratio, for kairos', range=(1, 1000))
    aging: int = _param(
        50,
        'Decisions without a request after which it rises by a bucket, for kairos',
        range=(1, 100_000),
    )
    bucket_order: str = _param(
        'longest', 'Order within a bucket, for kairos: longest, shortest or fifo'
    )
    pending: bool = _param(
        False,
        'Whether the wait for a round counts while it lasts, for kairos, once the round before '
        'it was executed',
    )
    max_queue_delay: float = _param(
        0.0,
        'Time (s) that a request is held for a fuller batch, at most; meanwhile the engine '
        'decodes. It must be below what a robot still has to execute when it asks',
        range=(0.0, 1.0),
    )
    profile: str = _param(
        '',
        "YAML file of the engine's seconds by batch size, as `python -m benchmarks.fleet.profile` "
        'writes it. Empty: they are measured when the server starts',
    )
    trace: str = _param(
        '', 'File in which the executions of all clients are written. Empty: none is written'
    )

    def __post_init__(self) -> None:
        for name, allowed in (('scheduler', SCHEDULERS), ('bucket_order', BUCKET_ORDERS)):
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f'{name} must be one of {", ".join(allowed)} (got {value!r})')

    def profile_of(self, most: int, measure: Callable[[], Profile]) -> Profile:
        """Return the profile of an engine with batches of `most` robots. Raises ValueError."""
        if not self.profile:
            return measure()
        found = read(Path(self.profile).expanduser())
        if found.saturation > most:
            raise ValueError(
                f'profile must fill batches of at most engine.robots = {most} (got '
                f'{found.saturation} in {self.profile}); raise engine.robots'
            )
        return found

    def trace_writer(self, period: float) -> TraceWriter | None:
        """Return the writer of `trace`; period: s between two actions. Raises OSError."""
        return TraceWriter(Path(self.trace).expanduser(), period) if self.trace else None

    def order(self, account: Callable[[str], Hashable]) -> Scheduler:
        """Return a scheduler. account: whose requests those of a robot are."""
        if self.scheduler == 'kairos':
            return Kairos(self.buckets, self.aging, self.bucket_order, self.pending)
        return FairDeadline(account) if self.scheduler == 'deadline' else scheduler(self.scheduler)
