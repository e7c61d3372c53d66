"""A CPU-emulated device that is as late, unclean and unreliable as its interface allows.

`pytest --device=hostile TESTS` runs tests on it, the soak has `--device hostile`, and
`HostileDevice` is a context manager for a single test. It replaces the streams of a CPU, which
order nothing (`Stream.emulated`):

- Unclean: every arena starts as NaN, and a row or block that is freed becomes NaN.
- Late: a write into an arena, and a copy out of one, is queued on the stream of the thread that
  launched it. It is done when a thread waits for an event behind it, or when the same stream reads
  its memory. Until then every other thread and stream finds the former content, and the target of
  a copy is NaN. Anything else is done at once.
- Unreliable: after `fail_after(n)`, one operation raises `InjectedFaultError` once streams have
  launched n more; after `lose()`, every wait raises, as with a lost CUDA context.

Work that is launched outside of `Stream.use` is done at once, on a default stream that is not
ordered with any other one, as torch's is. Within `HostileDevice.default.use()` it can fail, too.
The device sees what goes through torch's dispatcher.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.runtime import stream

aten = torch.ops.aten
COPIES = {aten.clone.default, aten._to_copy.default}


class InjectedFaultError(RuntimeError):
    """An operation that fails once."""


@dataclass(frozen=True, eq=False)
class Event(stream.Event):
    """An event that is done when its stream has done `count` pieces of work."""

    of: HostileStream
    count: int

    @property
    def done(self) -> bool:
        return self.of.finished >= self.count

    def wait(self) -> None:
        if not self.of.default:  # threads of another device may use the default one, too
            self.of.hostile.check()
        if not self.done:
            time.sleep(self.of.hostile.delay)
        self.of.run(self.count)


@dataclass(frozen=True, eq=False)
class HostileStream(stream.Stream):
    """A queue of work; `finished` counts the pieces done. default: work is done at once."""

    hostile: HostileDevice = None
    default: bool = False
    queue: deque[Callable[[], object]] = field(default_factory=deque)
    pending: dict[int, int] = field(default_factory=dict)  # storage -> writes in the queue
    counts: list[int] = field(default_factory=lambda: [0])

    @property
    def finished(self) -> int:
        return self.counts[0]

    @property
    def launched(self) -> int:
        return self.finished + len(self.queue)

    @contextmanager
    def use(self) -> Iterator[None]:
        before = getattr(self.hostile.local, 'stream', None)
        self.hostile.local.stream = self
        try:
            with Late(self):
                yield
        finally:
            self.hostile.local.stream = before

    def record(self) -> Event:
        return Event(None, self, self.launched)

    def wait(self, event: stream.Event) -> None:
        if not isinstance(event, Event) or event.of is self:
            return
        if self.default:
            event.wait()
        else:
            self.launch(event.wait)

    def launch(self, work: Callable[[], object], writes: int | None = None) -> None:
        """Queue a piece of work. writes: address of the storage that it writes."""
        with self.hostile.lock:
            if writes is not None:
                self.pending[writes] = self.pending.get(writes, 0) + 1

            def done() -> None:
                with torch.inference_mode():
                    work()
                if writes is not None:
                    self.pending[writes] -= 1
                    if not self.pending[writes]:
                        del self.pending[writes]

            self.queue.append(done)
            self.hostile.queued += 1

    def run(self, count: int | None = None) -> None:
        """Do the oldest pieces of work until `count` of this stream are done; None: all."""
        with self.hostile.lock, _disable_current_modes():
            while self.queue and (count is None or self.finished < count):
                work = self.queue.popleft()
                self.counts[0] += 1
                work()


class Late(TorchDispatchMode):
    """Queues what a thread writes into arenas and copies out of them."""

    def __init__(self, of: HostileStream) -> None:
        super().__init__()
        self.of = of

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, device = kwargs or {}, self.of.hostile
        if func.is_view:
            return func(*args, **kwargs)
        device.tick(func)
        if self.of.default:
            return func(*args, **kwargs)
        written = [args[i] if i < len(args) else kwargs[name] for i, name in writes(func)]
        if len(written) == 1 and device.owns(written[0]):
            (target,) = written
            args, kwargs = tree_map(
                lambda leaf: leaf if leaf is target else self._as_now(leaf), (args, kwargs)
            )
            self.of.launch(lambda: func(*args, **kwargs), address(target))
            return target
        if func in COPIES and device.owns(args[0]):
            made = func(*args, **kwargs)
            if address(made) != address(args[0]) and made.is_floating_point():
                made.fill_(float('nan'))
                self.of.launch(lambda: made.copy_(args[0]), address(made))
            return made
        if self.of.pending and any(
            address(leaf) in self.of.pending for leaf in tensors((args, kwargs))
        ):
            self.of.run()
        return func(*args, **kwargs)

    def _as_now(self, leaf: object) -> object:
        """Return an argument as it is now: the host may overwrite it for the next step."""
        if not isinstance(leaf, Tensor) or self.of.hostile.owns(leaf):
            return leaf
        if address(leaf) in self.of.pending:
            self.of.run()
        return leaf.clone()


class HostileDevice:
    """A context manager within which the CPU behaves as such a device.

    delay: s that a thread sleeps when it waits for an event that is not done. queued: pieces of
    work that were late so far. operations: that streams launched so far.
    """

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.lock, self.local = threading.RLock(), threading.local()
        self.streams: weakref.WeakSet[HostileStream] = weakref.WeakSet()
        self.default = HostileStream(None, self, default=True)
        self.queued = self.operations = 0
        self._arenas: dict[int, int] = {}  # address of a storage -> arenas that have it
        self._left: int | None = None
        self._is_lost = False

    def fail_after(self, operations: int | None) -> None:
        """Make one operation raise, after `operations` more; None: no operation fails."""
        self._left = operations

    def lose(self) -> None:
        """Make every wait for this device raise from now on."""
        self._is_lost = True

    def check(self) -> None:
        """Raise the error of a lost device if it is lost."""
        if self._is_lost:
            raise torch.AcceleratorError('CUDA error: an illegal memory access was encountered')

    def tick(self, func: object) -> None:
        """Count an operation, and raise if it is the one to fail."""
        self.operations += 1
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                raise InjectedFaultError(f'{func} failed')

    def owns(self, tensor: Tensor) -> bool:
        """Return whether the tensor is memory of an arena."""
        return isinstance(tensor, Tensor) and address(tensor) in self._arenas

    def current(self) -> HostileStream:
        return getattr(self.local, 'stream', None) or self.default

    def new(self) -> HostileStream:
        made = HostileStream(None, self)
        self.streams.add(made)
        return made

    def write(self, part: Tensor, value: float) -> None:
        """Fill arena memory: on the current stream, or, on the default one, after all work."""
        with _disable_current_modes(), torch.inference_mode():
            if self.current().default:
                for one in list(self.streams):
                    one.run()
                part.fill_(value)
            else:
                self.current().launch(lambda: part.fill_(value), address(part))

    def _add(self, arena: object, *parts: Tensor) -> None:
        """Register storages of an arena, and fill them with NaN."""
        for part in parts:
            part.fill_(float('nan'))
            place = address(part)
            self._arenas[place] = self._arenas.get(place, 0) + 1
            weakref.finalize(arena, self._drop, place)

    def _drop(self, place: int) -> None:
        self._arenas[place] -= 1
        if not self._arenas[place]:
            del self._arenas[place]

    def __enter__(self) -> HostileDevice:
        device, made, blocks = self, Arena.__init__, CompressedArena.__init__
        lengths, give = Arena.set_length, CompressedArena.free

        def init(arena: Arena, **size: object) -> None:
            made(arena, **size)
            device._add(arena, arena.kv)

        def init_blocks(arena: CompressedArena, *args: object, **named: object) -> None:
            blocks(arena, *args, **named)
            device._add(arena, arena.k, arena.v)

        def clear(arena: Arena, rows: object, begin: int = 0) -> None:
            for row in rows if isinstance(rows, (list, tuple)) else [rows]:
                device.write(arena.kv[:, :, row, :, begin:], 0.0)

        def set_length(arena: Arena, rows: object, length: object) -> None:
            frees = isinstance(rows, int) and isinstance(length, int) and not length
            if frees and arena.lengths[0, rows]:
                device.write(arena.kv[:, :, rows], float('nan'))
            lengths(arena, rows, length)

        def give_block(arena: CompressedArena, row: int) -> None:
            for part in CompressedArena.block(arena, row):  # of the class: a soak patches arenas
                device.write(part, float('nan'))
            give(arena, row)

        class Emulated(HostileStream):
            on = classmethod(lambda cls, _: device.new())
            current = classmethod(lambda cls, _: device.current())

        self._patches = [
            mock.patch.object(stream.Stream, 'emulated', Emulated),
            mock.patch.object(Arena, '__init__', init),
            mock.patch.object(Arena, 'clear', clear),
            mock.patch.object(Arena, 'set_length', set_length),
            mock.patch.object(CompressedArena, '__init__', init_blocks),
            mock.patch.object(CompressedArena, 'free', give_block),
        ]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in reversed(self._patches):
            patch.stop()


@cache
def writes(func: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """Return position and name of each argument that an operation writes."""
    return tuple(
        (i, argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def address(tensor: Tensor) -> int:
    """Return the address of the storage; 0 if there is none, as for prepacked weights."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def tensors(tree: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
