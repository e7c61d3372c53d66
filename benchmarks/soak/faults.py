"""Injected failures: calls that raise now and then, by a seed.

Knows names, rates and attributes. Does not know what the calls do. The code under test has no
hooks: an attribute of it is replaced, and restored at the end.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from threading import Lock


class InjectedError(Exception):
    """A failure that was injected."""


class InjectedComputeError(InjectedError, RuntimeError):
    """An injected failure of a computation."""


class InjectedDiskError(InjectedError, OSError):
    """An injected failure of a disk."""


def broken(name: str) -> InjectedComputeError:
    return InjectedComputeError(f'injected: {name}')


def full(name: str) -> InjectedDiskError:
    return InjectedDiskError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


def unreadable(name: str) -> InjectedDiskError:
    return InjectedDiskError(errno.EIO, os.strerror(errno.EIO), name)


def was_injected(error: BaseException | None) -> bool:
    """Return whether an error, or what it was raised from, was injected."""
    while error is not None and not isinstance(error, InjectedError):
        error = error.__cause__ or error.__context__
    return error is not None


class Faults:
    """Failures by name: the seed and the name decide which calls fail. Any thread may use it.

    often: a factor of all rates. struck: how often each name has failed. As a context, it restores
    all replaced attributes at the end.
    """

    def __init__(self, seed: int, often: float = 1.0) -> None:
        self.struck: Counter[str] = Counter()
        self._seed, self._often, self._lock = seed, often, Lock()
        self._randoms: dict[str, Random] = {}
        self._pauses, self._undo = 0, ExitStack()

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no call fail within the context."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def hits(self, name: str, rate: float) -> bool:
        """Return whether this call is to fail. rate: the share of calls that do."""
        with self._lock:
            if name not in self._randoms:
                self._randoms[name] = Random(f'{self._seed} {name}')
            random = self._randoms[name]
            hit = random.random() < rate * self._often and not self._pauses
            self.struck[name] += hit
            return hit

    def strike(self, name: str, rate: float, error: Callable[[str], Exception] = broken) -> None:
        """Raise the error of a name in that share of the calls."""
        if self.hits(name, rate):
            raise error(name)

    def wrapped(
        self,
        name: str,
        call: Callable,
        rate: float,
        error: Callable[[str], Exception] = broken,
    ) -> Callable:
        """Return the call such that it fails now and then before it begins."""

        def risky(*args: object, **named: object) -> object:
            self.strike(name, rate, error)
            return call(*args, **named)

        return risky

    def replace(self, owner: object, attribute: str, new: object) -> None:
        """Replace an attribute until the end. Raises AttributeError if it does not exist."""
        getattr(owner, attribute)
        own, old = attribute in vars(owner), vars(owner).get(attribute)
        setattr(owner, attribute, new)
        if own:
            self._undo.callback(setattr, owner, attribute, old)
        else:
            self._undo.callback(delattr, owner, attribute)
