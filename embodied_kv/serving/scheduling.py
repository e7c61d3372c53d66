"""The order in which a server serves its clients: ROS parameters and command-line options."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from embodied_kv.fleet.profile import Profile, read
from embodied_kv.fleet.schedulers import (
    BUCKET_ORDERS,
    SCHEDULERS,
    FairDeadline,
    Kairos,
    Scheduler,
    scheduler,
)
from embodied_kv.fleet.trace import TraceWriter
from embodied_kv.parameter import parameter


@dataclass(frozen=True)
class SchedulingConfig:
    """The scheduler and its settings. Raises ValueError."""

    scheduler: str = parameter(
        'deadline',
        'Order of the requests: deadline (earliest deadline, with equal shares for all '
        'connections), kairos (largest wait ratio of the task), fifo, autellix (least service '
        'so far) or shortest (shortest execution). All but deadline require clients that trust '
        'each other',
    )
    kairos_buckets: int = parameter(
        10, 'Buckets of the wait ratio, for kairos', range=(1, 1000), old=('buckets',)
    )
    kairos_aging: int = parameter(
        50,
        'Decisions that skip a request until it rises by a bucket, for kairos',
        range=(1, 100_000),
        old=('aging',),
    )
    kairos_bucket_order: str = parameter(
        'longest',
        'Order within a bucket, for kairos: longest, shortest or fifo',
        old=('bucket_order',),
    )
    kairos_count_pending_wait: bool = parameter(
        False,
        'Count the wait for a round while it lasts, once the round before it was executed, for '
        'kairos',
        old=('pending',),
    )
    max_queue_delay: float = parameter(
        0.0,
        'Maximum time (s) for which a request is held for a fuller batch; the engine decodes in '
        'this time. It must be below what a robot has left to execute at its request',
        range=(0.0, 1.0),
    )
    profile: str = parameter(
        '',
        "YAML file with the engine's seconds by batch size, written by `python -m "
        'benchmarks.fleet.profile`. Empty: the server measures them when it starts',
    )
    trace: str = parameter(
        '', 'Path of a file to which the executions of all clients are written. Empty: none'
    )

    def __post_init__(self) -> None:
        for name, allowed in (('scheduler', SCHEDULERS), ('kairos_bucket_order', BUCKET_ORDERS)):
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f'{name} must be one of {", ".join(allowed)} (got {value!r})')

    def profile_of(self, most: int, measure: Callable[[], Profile]) -> Profile:
        """Return the file's or a measured profile. Raises ValueError for batches above `most`."""
        if not self.profile:
            return measure()
        found = read(Path(self.profile).expanduser())
        if found.saturation > most:
            raise ValueError(
                f'profile must fill batches of at most engine.max_batch_robots = {most} (got '
                f'{found.saturation} in {self.profile}); raise engine.max_batch_robots'
            )
        return found

    def trace_writer(self, period: float) -> TraceWriter | None:
        """Return the writer of `trace`; `period`: s between two actions. Raises OSError."""
        return TraceWriter(Path(self.trace).expanduser(), period) if self.trace else None

    def order(self, account: Callable[[str], Hashable]) -> Scheduler:
        """Return a scheduler; `account` returns the account of a robot."""
        if self.scheduler == 'kairos':
            return Kairos(
                self.kairos_buckets,
                self.kairos_aging,
                self.kairos_bucket_order,
                self.kairos_count_pending_wait,
            )
        return FairDeadline(account) if self.scheduler == 'deadline' else scheduler(self.scheduler)
