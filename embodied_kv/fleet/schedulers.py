"""Schedulers: the order in which requests that wait for an engine are served.

A scheduler reads only `Waiting` records; the caller passes the time `now`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter

SHORTEST, LONGEST = 0.01, 60.0  # s; bounds of an estimated execution, whatever a robot reports
BUCKET_ORDERS = ('longest', 'shortest', 'fifo')
SILENT = 60.0  # s without a request after which an account is forgotten


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits for an engine; a robot has at most one.

    Moments are seconds on the server's clock: `arrived` of this request, `started` of the first
    request of its task, `deadline` of the answer, and `due`, from which on this round delays its
    robot (`WaitTime.due`). Durations are seconds: `waited` between rounds of the task,
    `generation` that the task has received, `execution` expected for the chunk. `skipped` counts
    consecutive decisions that chose other requests. `lost_batches` has one reason for each lost
    batch that contained the request.
    """

    robot: str
    task: str
    round: int
    arrived: float
    started: float
    waited: float
    generation: float
    execution: float
    bytes: int = 0
    skipped: int = 0
    lost_batches: tuple[str, ...] = ()
    deadline: float = math.inf
    due: float = math.inf


class Scheduler(ABC):
    """Base class: an order of waiting requests, computed in O(n log n)."""

    @abstractmethod
    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        """Return all waiting requests, the first to serve first."""

    def sent(self, batch: Sequence[Waiting], now: float) -> None:
        return None


def skip(waiting: Collection[Waiting], batch: Sequence[Waiting]) -> None:
    """Count a decision that chose `batch`; an empty batch is no decision."""
    if batch:
        for request in waiting:
            request.skipped += 1
        for request in batch:
            request.skipped = 0


@dataclass(frozen=True)
class Kairos(Scheduler):
    """Largest wait ratio first (Kairos, Algorithm 1).

    The wait ratio falls into one of `buckets` of equal width, ratio 1 into the top one. A request
    rises by one bucket after every `aging` decisions that skipped it. (Line 8 of the algorithm
    writes a ceiling, which would raise it twice within aging + 1 decisions; section 3.2.2 has a
    floor.) Within a bucket the longest expected execution, scaled by (1 + skipped), goes first;
    `bucket_order` names the other orders of Figure 16. `pending`: whether the wait for the
    requested round counts while it lasts; lines 2 to 5 leave this open.

    No request starves. Let n be the maximum number of waiting requests, let each decision serve
    at least one, and let e be the ratio of the longest expected execution to the shortest, at
    most LONGEST / SHORTEST. Then no request is skipped more often than

        max(aging * (buckets - 1), ceil(e * n)) + n - 1        (`starvation_bound`)

    Proof. Let k be the maximum's value and r a request that has been skipped k times. From then on
    r is in the top bucket, as k >= aging * (buckets - 1). During the next n decisions its score is
    at least shortest * (1 + k) > longest * n. A request that joins after this moment has been
    skipped fewer than n times in that span, so its score is at most longest * n: it stays behind
    r. Thus each request that is served before r was already waiting at this moment. There are
    n - 1 of them, each is served once (served again, it has joined later), and every decision
    without r serves at least one of them. The n-th decision serves r.
    """

    buckets: int = 10
    aging: int = 50
    bucket_order: str = 'longest'
    pending: bool = False

    def __post_init__(self) -> None:
        if self.buckets < 1 or self.aging < 1:
            raise ValueError(
                f'buckets and aging must be at least 1 (got {self.buckets} and {self.aging})'
            )
        if self.bucket_order not in BUCKET_ORDERS:
            raise ValueError(
                f'bucket_order must be one of {BUCKET_ORDERS} (got {self.bucket_order!r})'
            )

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        """Return the order of Algorithm 1, phases 1 and 2; equal scores by arrival."""
        buckets, top, aging = self.buckets, self.buckets - 1, self.aging
        pending = self.pending
        power = {'longest': 1, 'fifo': 0, 'shortest': -1}[self.bucket_order]
        keyed = []
        for i, r in enumerate(waiting):  # plain Python: this loop is half of a decision's time
            life, skipped, score = now - r.started, r.skipped, r.execution
            waited = r.waited + now - r.due if pending and now > r.due else r.waited
            bucket = int(waited / life * buckets) if life > 0 else 0
            if skipped >= aging:
                bucket += skipped // aging
            score = LONGEST if score > LONGEST else SHORTEST if score < SHORTEST else score
            if power == 1:
                score *= 1 + skipped
            else:
                score = (1 + skipped) / score if power else 0.0
            keyed.append((-bucket if bucket < top else -top, -score, r.arrived, i, r))
        keyed.sort()
        return [key[4] for key in keyed]

    def starvation_bound(self, waiting: int, spread: float = LONGEST / SHORTEST) -> int:
        """Return how many decisions can skip a request in the order 'longest'; `spread` is e."""
        return max(self.aging * (self.buckets - 1), int(-(-spread * waiting // 1))) + waiting - 1


class Fifo(Scheduler):
    """First come, first served, as in serving frameworks."""

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        return sorted(waiting, key=attrgetter('arrived'))


@dataclass(frozen=True)
class EarliestDeadline(Scheduler):
    """Earliest deadline first (Liu and Layland 1973, section 7).

    The deadline of a request is at most `patience` s after its arrival, also where it names a
    later one or none. So no request starves: one that arrives more than `patience` s after
    another is served behind it, whatever deadline it names.
    """

    patience: float = 1.0

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        return sorted(waiting, key=lambda r: (self.due(r), r.arrived))

    def due(self, request: Waiting) -> float:
        """Return the deadline that counts, s: never before the arrival of the request."""
        return max(request.arrived, min(request.deadline, request.arrived + self.patience))


class LeastAttained(Scheduler):
    """Least generation received by the task first, as in Autellix; requests may starve."""

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        return sorted(waiting, key=attrgetter('generation', 'arrived'))


class ShortestJob(Scheduler):
    """Shortest expected execution first; requests may starve."""

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        return sorted(waiting, key=attrgetter('execution', 'arrived'))


class Usage:
    """Recently served requests of each account; they decay by the factor e in `memory` s."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._had: dict[Hashable, tuple[float, float]] = {}  # requests, moment of the last one
        self.unserved: set[Hashable] = set()  # accounts that were never served

    def add(self, account: Hashable, requests: float, now: float) -> None:
        """Count requests that were served now."""
        self.unserved.discard(account)
        self._had[account] = requests + self.of(account, now), now

    def of(self, account: Hashable, now: float) -> float:
        """Return the requests of the account that have not decayed."""
        had, then = self._had.get(account, (0.0, now))
        return had * math.exp((then - now) / self._memory)

    def enter(self, accounts: Collection[Hashable], now: float) -> dict[Hashable, float]:
        """Return the usage of each account.

        A new account starts with the highest usage of all, so that reconnecting gains nothing.
        """
        self._had = {a: had for a, had in self._had.items() if now - had[1] < SILENT}
        most = max((self.of(account, now) for account in self._had), default=0.0)
        found = {a: self.of(a, now) if a in self._had else most for a in accounts}
        self.unserved = (self.unserved & self._had.keys()) | (found.keys() - self._had.keys())
        self._had |= {account: (had, now) for account, had in found.items()}
        return found


class FairDeadline(Scheduler):
    """Earliest deadline first, with equal shares for all accounts.

    Each recently served request postpones the next one of its account by `patience` s, which is
    as much as a deadline may gain (`EarliestDeadline`). So an account that was served more goes
    behind one that was served less, whatever deadlines they name: occasional requests are served
    before floods, and a deadline is worth one request in `memory` s. The first request of a new
    account is as urgent as the most urgent one of the known accounts, whatever deadline it names.

    Args:
        account: Returns the account of a robot.
        patience: See `EarliestDeadline`, s.
        longest: Time (s, at least `patience`) after which a request is no longer postponed. So no
            request starves: one that arrives more than `longest` s later is served behind it.
        memory: Time constant (s) of the decay of served requests.
    """

    def __init__(
        self,
        account: Callable[[str], Hashable] = lambda robot: robot,
        patience: float = 1.0,
        longest: float = 10.0,
        memory: float = 2.0,
    ) -> None:
        if not 0 <= patience <= longest:
            raise ValueError(
                f'patience must be from 0 to longest = {longest} (got {patience}); raise longest'
            )
        self.longest, self._patience = longest, patience
        self._account, self._deadlines = account, EarliestDeadline(patience)
        self._usage = Usage(memory)

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        """Return the order by deadline and usage, then by arrival."""
        accounts = {request.robot: self._account(request.robot) for request in waiting}
        had = self._usage.enter(accounts.values(), now)
        due, new = self._deadlines.due, self._usage.unserved
        known = (due(r) - r.arrived for r in waiting if accounts[r.robot] not in new)
        hurry = min(known, default=None)

        def rank(request: Waiting) -> tuple[float, float]:
            account = accounts[request.robot]
            is_known = account not in new
            moment = due(request) if hurry is None or is_known else request.arrived + hurry
            is_old = now - request.arrived >= self.longest
            return moment + (0.0 if is_old else self._patience * had[account]), request.arrived

        return sorted(waiting, key=rank)

    def sent(self, batch: Sequence[Waiting], now: float) -> None:
        for request in batch:
            self._usage.add(self._account(request.robot), 1.0, now)


SCHEDULERS = {
    'kairos': Kairos,
    'fifo': Fifo,
    'autellix': LeastAttained,
    'deadline': EarliestDeadline,
    'shortest': ShortestJob,
}


def scheduler(name: str) -> Scheduler:
    """Return a scheduler with default settings. Raises ValueError for an unknown name."""
    if name not in SCHEDULERS:
        raise ValueError(f'scheduler must be one of {", ".join(SCHEDULERS)} (got {name!r})')
    return SCHEDULERS[name]()
