"""Failures on purpose: calls that raise now and then, by a seed.

Knows names, rates and attributes. Does not know what the calls do. What is made to fail has no
hooks: an attribute of it is replaced, and put back in the end.
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
    """A failure that was made on purpose."""


class InjectedComputeError(InjectedError, RuntimeError):
    """As a computation fails."""


class InjectedDiskError(InjectedError, OSError):
    """As a disk fails."""


def broken(name: str) -> InjectedComputeError:
    return InjectedComputeError(f'injected: {name}')


def full(name: str) -> InjectedDiskError:
    return InjectedDiskError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


def unreadable(name: str) -> InjectedDiskError:
    return InjectedDiskError(errno.EIO, os.strerror(errno.EIO), name)


def was_injected(error: BaseException | None) -> bool:
    """Whether it, or what it was raised from, was made on purpose."""
    while error is not None and not isinstance(error, InjectedError):
        error = error.__cause__ or error.__context__
    return error is not None


class Faults:
    """Each name fails at calls of its own, which the seed and the name decide. From any thread.

    often: a factor of all rates. struck: how often each name has failed. Used as a context: in the
    end everything is put back.
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
        """Nothing fails within."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def hits(self, name: str, rate: float) -> bool:
        """Whether this call is to fail; rate: the share of calls that do."""
        with self._lock:
            if name not in self._randoms:
                self._randoms[name] = Random(f'{self._seed} {name}')
            random = self._randoms[name]
            hit = random.random() < rate * self._often and not self._pauses
            self.struck[name] += hit
            return hit

    def strike(self, name: str, rate: float, error: Callable[[str], Exception] = broken) -> None:
        """Raises the error of this name, at such a share of calls."""
        if self.hits(name, rate):
            raise error(name)

    def wrapped(
        self,
        name: str,
        call: Callable,
        rate: float,
        error: Callable[[str], Exception] = broken,
    ) -> Callable:
        """The call, which fails now and then before it has begun."""

        def risky(*args: object, **named: object) -> object:
            self.strike(name, rate, error)
            return call(*args, **named)

        return risky

    def replace(self, owner: object, attribute: str, new: object) -> None:
        """Until the end. Raises AttributeError where there is no such attribute."""
        getattr(owner, attribute)
        own, old = attribute in vars(owner), vars(owner).get(attribute)
        setattr(owner, attribute, new)
        if own:
            self._undo.callback(setattr, owner, attribute, old)
        else:
            self._undo.callback(delattr, owner, attribute)
