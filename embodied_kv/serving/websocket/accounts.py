"""The resources of each API key: bytes in flight, frames and new connections.

Each pool is divided by key, so that no key can use the part of another. Without keys all clients
share one account, and each connection has its own frame rate. All of this runs on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping

FRAME_RATE = 2000.0  # frames per second of a key; further ones wait
OPENING_RATE = 10.0  # connections per second of a key; further ones are refused
OPENING_BURST = 64


class Bucket:
    """A token bucket with `rate` tokens per second; `burst` bounds its tokens and its debt."""

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at = burst, clock()

    def take(self) -> float:
        """Take a token; return the seconds until it is due, 0 if one was available."""
        now = self._clock()
        filled = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._tokens, self._at = max(filled - 1, -self._burst), now
        return max(0.0, -self._tokens / self._rate)


class MessagePool:
    """Bytes of messages that are read or answered, first come, first served.

    A message that is longer than the whole pool is admitted alone.
    """

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()

    def fits(self, size: int) -> bool:
        """Return whether `size` bytes are free."""
        return not self.used or self.used + size <= self.most

    def take(self, size: int, granted: Callable[[int], None], first: bool = False) -> bool:
        """Reserve the bytes now and return True, or call `granted` with them later.

        `first`: ahead of the messages that wait.
        """
        if (self._waiting and not first) or not self.fits(size):
            self._waiting.append((size, granted))
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """Free bytes, and grant them to messages that wait."""
        self.used -= size
        self._grant()

    def forget(self, granted: Callable[[int], None]) -> None:
        """Remove a message that waits."""
        self._waiting = deque(w for w in self._waiting if w[1] != granted)
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self.fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self.used += size
            granted(size)


class Account:
    """The resources of one key; `name` is '' for all clients of a server without keys."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.pool = name, MessagePool(most)
        self.openings = Bucket(OPENING_RATE, OPENING_BURST)
        self.verbs = asyncio.Lock()  # one capsule operation or reset at a time
        self.connections = self.requests = self.frames = self.bytes = 0
        self._frames = Bucket(FRAME_RATE, FRAME_RATE)

    def frame_rate(self) -> Bucket:
        """Return the frame bucket for a new connection: that of the key, if there is one."""
        return self._frames if self.name else Bucket(FRAME_RATE, FRAME_RATE)


class Accounts:
    """All accounts; `names` by key, empty for a server without keys; `most`: bytes in flight."""

    def __init__(self, names: Mapping[str, str], most: int) -> None:
        self._most = most
        self._accounts: dict[str, Account] = {}
        self.divide(names)

    @property
    def names(self) -> list[str]:
        return list(self._accounts)

    def of(self, name: str) -> Account:
        return self._accounts[name]

    def divide(self, keys: Mapping[str, str]) -> None:
        """Give each name the same part; accounts that remain keep their counts."""
        self.keys, names = dict(keys), list(dict.fromkeys(keys.values())) or ['']
        share = self._most // len(names)
        kept = {name: self._accounts.get(name) or Account(name, share) for name in names}
        for account in kept.values():
            account.pool.most = share
        self._accounts = kept

    def values(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                'connections': account.connections,
                'requests': account.requests,
                'frames': account.frames,
                'received_bytes': account.bytes,
                'message_bytes': account.pool.used,
            }
            for name, account in list(self._accounts.items())
        }
