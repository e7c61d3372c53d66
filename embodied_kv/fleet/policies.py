"""The schedulers: Kairos and those that it is compared with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from operator import attrgetter

from embodied_kv.fleet.scheduler import Scheduler, Waiting

SHORTEST, LONGEST = 0.01, 60.0  # s; an execution is estimated within these, whatever a robot says
BUCKET_ORDERS = ('longest', 'shortest', 'fifo')


@dataclass(frozen=True)
class Kairos(Scheduler):
    """Who has waited the largest share of its life goes first (Kairos, Algorithm 1).

    The wait ratio falls into one of `buckets` of equal width, the top one at ratio 1 too; a
    request rises by one bucket after every `aging` decisions that skipped it. (Line 8 of the
    algorithm writes a ceiling, which would raise it twice within aging + 1 decisions; the text of
    section 3.2.2 says a floor.) Within a bucket the longest expected execution goes first, scaled
    by (1 + skipped); `bucket_order` names the other orders of Figure 16. `pending` says whether
    the wait for the round that is asked for counts, too, so far as it has lasted; lines 2 to 5 sum
    waits between rounds without saying which.

    Nobody starves. Let n requests wait at most, let each decision serve at least one, and let e be
    the ratio of the longest expected execution to the shortest, at most LONGEST / SHORTEST. Then
    no request is skipped more often than

        max(aging * (buckets - 1), ceil(e * n)) + n - 1        (`starvation_bound`)

    Proof. Let k be the maximum's value and look at a request r that has been skipped k times. From
    here on it is in the top bucket, as k >= aging * (buckets - 1). During the next n decisions its
    score is at least shortest * (1 + k) > longest * n. A request that joins after this moment has
    been skipped fewer than n times in that span, so its score is at most longest * n: it stays
    behind r. So whoever is served before r waited already at this moment; there are n - 1 of
    them, each is served once (served again, it has joined anew), and every decision without r
    serves at least one of them. The n-th decision serves r.
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
        """Algorithm 1, phases 1 and 2; equal scores by arrival."""
        buckets, top, aging = self.buckets, self.buckets - 1, self.aging
        pending = self.pending
        power = {'longest': 1, 'fifo': 0, 'shortest': -1}[self.bucket_order]
        keyed = []
        for i, r in enumerate(waiting):  # plain Python: half of a decision's time is this loop
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
        """Most decisions that can skip a request; spread: e above. For the order 'longest'."""
        return max(self.aging * (self.buckets - 1), int(-(-spread * waiting // 1))) + waiting - 1


class Fifo(Scheduler):
    """Who asked first goes first: what serving frameworks do. Skips nobody who came earlier."""

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        return sorted(waiting, key=attrgetter('arrived'))


@dataclass(frozen=True)
class EarliestDeadline(Scheduler):
    """Whose answer has to be there first goes first (Liu and Layland 1973, section 7).

    patience: s after its arrival that count as the deadline of a request where its own is later,
    or where it names none. So nobody starves: whoever arrives more than `patience` s after a
    request is served behind it, whatever deadline it claims.
    """

    patience: float = 1.0

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        return sorted(waiting, key=lambda r: (self.due(r), r.arrived))

    def due(self, request: Waiting) -> float:
        """The moment that counts, s: not before it arrived, whatever it claims."""
        return max(request.arrived, min(request.deadline, request.arrived + self.patience))


class LeastAttained(Scheduler):
    """Whose task has had the least generation goes first, as in Autellix; may starve others."""

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        return sorted(waiting, key=attrgetter('generation', 'arrived'))


class ShortestJob(Scheduler):
    """Who is expected to execute the shortest chunk goes first; may starve others."""

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        return sorted(waiting, key=attrgetter('execution', 'arrived'))


SCHEDULERS = {
    'kairos': Kairos,
    'fifo': Fifo,
    'autellix': LeastAttained,
    'deadline': EarliestDeadline,
    'shortest': ShortestJob,
}


def scheduler(name: str) -> Scheduler:
    """The scheduler of that name, as by default. Raises ValueError that lists the names."""
    if name not in SCHEDULERS:
        raise ValueError(f'no scheduler {name!r}; there are: {", ".join(SCHEDULERS)}')
    return SCHEDULERS[name]()
