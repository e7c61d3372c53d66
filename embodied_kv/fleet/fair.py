"""Deadlines, and turns: what a policy server ranks by, whose clients owe each other nothing.

Knows requests that wait, and whose they are. Does not know connections or engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence

from embodied_kv.fleet.policies import EarliestDeadline
from embodied_kv.fleet.scheduler import Scheduler, Waiting

SILENT = 60.0  # s without a request after which an account is forgotten


class Usage:
    """Requests that were served of each account lately: they fade by e in `memory` s."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._had: dict[Hashable, tuple[float, float]] = {}  # requests, when it last asked
        self.unserved: set[Hashable] = set()  # accounts that have had nothing yet

    def add(self, account: Hashable, requests: float, now: float) -> None:
        """So many more, just now."""
        self.unserved.discard(account)
        self._had[account] = requests + self.of(account, now), now

    def of(self, account: Hashable, now: float) -> float:
        """What has not faded."""
        had, then = self._had.get(account, (0.0, now))
        return had * math.exp((then - now) / self._memory)

    def enter(self, accounts: Collection[Hashable], now: float) -> dict[Hashable, float]:
        """What each of these had; who is new, as much as anybody: coming again gains nothing."""
        self._had = {a: had for a, had in self._had.items() if now - had[1] < SILENT}
        most = max((self.of(account, now) for account in self._had), default=0.0)
        found = {a: self.of(a, now) if a in self._had else most for a in accounts}
        self.unserved = (self.unserved & self._had.keys()) | (found.keys() - self._had.keys())
        self._had |= {account: (had, now) for account, had in found.items()}
        return found


class FairDeadline(Scheduler):
    """The earliest deadline first, but each request that was served lately puts the next one off.

    It does so by `patience` s, as much as a deadline may gain (`EarliestDeadline`). So whoever had
    a request more than another goes behind it, whatever deadlines they claim: a client that asks
    now and then is served before floods, and a deadline is worth one request in `memory` s. Who is
    new has no request to give for one: its first request is as urgent as the most urgent of those
    who are known, whatever it claims. So it waits about one turn of all, and coming again gains
    no deadline either.

    account: whose a robot's requests are. memory: s in which what was served fades. longest: s, no
    shorter than patience, after which a request is put off no more. So nobody starves: whoever
    arrives more than `longest` s after a request is served behind it. Raises ValueError.
    """

    def __init__(
        self,
        account: Callable[[str], Hashable] = lambda robot: robot,
        patience: float = 1.0,
        longest: float = 10.0,
        memory: float = 2.0,
    ) -> None:
        if not 0 <= patience <= longest:
            raise ValueError(f'patience {patience}, longest {longest}: write a longer longest')
        self.longest, self._patience = longest, patience
        self._account, self._deadlines = account, EarliestDeadline(patience)
        self._usage = Usage(memory)

    def order(self, waiting: Collection[Waiting], now: float) -> list[Waiting]:
        """By deadline and what was had, then by arrival."""
        whose = {request.robot: self._account(request.robot) for request in waiting}
        had = self._usage.enter(whose.values(), now)

        due, new = self._deadlines.due, self._usage.unserved
        known = (due(r) - r.arrived for r in waiting if whose[r.robot] not in new)
        hurry = min(known, default=None)

        def rank(request: Waiting) -> tuple[float, float]:
            account = whose[request.robot]
            is_known = account not in new
            moment = due(request) if hurry is None or is_known else request.arrived + hurry
            is_old = now - request.arrived >= self.longest
            put_off = 0.0 if is_old else self._patience * had[account]
            return moment + put_off, request.arrived

        return sorted(waiting, key=rank)

    def sent(self, batch: Sequence[Waiting], now: float) -> None:
        """One request more of each."""
        for request in batch:
            self._usage.add(self._account(request.robot), 1.0, now)
