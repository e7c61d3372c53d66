"""Loads KV beside the computation that needs it later.

Knows threads, CUDA streams and when a layer may start. What comes next, `pending` decides; how one
load is done, the caller says.

One thread loads, one load after another, as the paper's loading engine. On a GPU it launches on a
CUDA stream of its own, so copies from pinned memory run beside the computation: it stays at most
`in_flight` loads ahead, lest what a layer turns out to need waits behind preloads for later ones.

The law: what layer i computes starts after all loads of layer i, on whichever stream and thread
the layer is computed. So the thread that enters `computing` sleeps until the device has done these
loads; the stream that computes waits for no load, and an action that shares it does not either. A
host that wants the times of a GPU in the timeline waits for its stream inside `computing`.

Source: KEEP, section 4.3, and section 5 for the dependencies.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Thread

import torch

from embodied_kv.runtime.stream import Event, Stream

LOAD, COMPUTE = 'load', 'compute'


@dataclass(frozen=True)
class Span:
    """Work of one lane on one layer, from start to end in seconds. unit: that was loaded."""

    lane: str
    layer: int
    start: float
    end: float
    unit: str = ''


@dataclass(frozen=True)
class Timeline:
    """Spans in the order in which they began, from 0 on. end: when the last work was done."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, spans: Iterable[Span], origin: float = 0.0) -> Timeline:
        """origin: the moment that becomes 0."""
        moved = (
            Span(s.lane, s.layer, s.start - origin, s.end - origin, s.unit)
            for s in sorted(spans, key=lambda s: (s.start, s.end))
        )
        return cls(tuple(moved))

    @property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    def lane(self, lane: str) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.lane == lane)

    def busy(self, lane: str) -> float:
        """Seconds in which it worked."""
        return sum(span.end - span.start for span in self.lane(lane))

    def bubbles(self, lane: str) -> tuple[tuple[float, float], ...]:
        """When it waited, as (start, end), from 0 to the end of all work."""
        found, free = [], 0.0
        for span in self.lane(lane):
            if span.start > free:
                found.append((free, span.start))
            free = max(free, span.end)
        return (*found, (free, self.end)) if self.end > free else tuple(found)


POLICIES = ('separate', 'next_layer', 'balanced')


class Pending:
    """Loads of the units of one prompt, over the layers of one pass.

    units: keys in the order of the prompt. Raises ValueError for an unknown policy.
    """

    def __init__(self, layers: int, units: Sequence[str], policy: str = 'balanced') -> None:
        if policy not in POLICIES:
            raise ValueError(f'no policy {policy!r}; there are: {", ".join(POLICIES)}')
        self.layers, self.policy = layers, policy
        self._order = {unit: i for i, unit in enumerate(units)}
        if len(self._order) != len(units):
            raise ValueError('a unit comes twice in a prompt')
        self._from: dict[str, int] = {}
        self._waiting: list[dict[str, None]] = [{} for _ in range(layers)]

    def drop(self, units: Iterable[str], layer: int) -> None:
        """Layer `layer` and those after it do not compute these units again, but need their KV.

        Raises LookupError for a unit that is not in the prompt; one that was dropped stays so.
        """
        for unit in sorted(units, key=self._order.__getitem__):
            if unit not in self._from:
                self._from[unit] = layer
                for later in range(layer, self.layers):
                    self._waiting[later][unit] = None

    def dropped(self, unit: str) -> int | None:
        """The first layer that does not compute it; None while all do."""
        return self._from.get(unit)

    def left(self, layer: int) -> bool:
        """Whether a layer still needs something that `take` has not given out."""
        return bool(self._waiting[layer])

    def take(self, layer: int, computing: bool) -> tuple[int, str] | None:
        """What to load now, as (layer, unit), while `layer` is computed, or else waited for.

        None where nothing may be loaded at present. It counts as given out.
        """
        first = layer + 1 if computing else layer
        if self.policy == 'balanced':
            last = self.layers - 1
        else:
            last = min(first, self.layers - 1) if self.policy == 'next_layer' else layer
        for at in range(first, last + 1):
            if self._waiting[at]:
                unit = min(self._waiting[at], key=self._order.__getitem__)
                del self._waiting[at][unit]
                return at, unit
        return None


Load = Callable[[str, int], None]


class Loader:
    """The loads of one pass over the layers; used as a context, in which they go on.

    load: (unit, layer) puts that KV where the layer reads it. It runs on the loading thread, in
    inference mode; on a GPU its work goes to the thread's own stream, and it waits for none of it.
    Whatever it raises, the caller's next `computing` raises, or the end of the context. after:
    what has to be done on the device before the first load writes; None: the current stream's
    work.
    """

    def __init__(
        self,
        pending: Pending,
        load: Load,
        device: str | torch.device = 'cpu',
        in_flight: int = 2,
        clock: Callable[[], float] = time.perf_counter,
        after: Event | None = None,
    ) -> None:
        if in_flight < 1:
            raise ValueError(f'{in_flight} loads in flight are none')
        self._pending, self._load, self._device = pending, load, torch.device(device)
        self._in_flight, self._clock = in_flight, clock
        self._stream, self._after = Stream.on(self._device), after
        self._changed = Condition()
        self._layer, self._computing, self._closed = 0, False, False
        self._error: BaseException | None = None
        self._issuing: int | None = None  # layer of the load that is being issued
        self._events: dict[int, Event] = {}  # behind the last load of each layer
        self._spans: list[Span] = []
        self._thread = Thread(target=self._run, name='memory-loader', daemon=True)
        self._origin = 0.0

    def __enter__(self) -> Loader:
        # The targets may be in use until then.
        self._stream.wait(self._after or Stream.current(self._device).record())
        self._origin = self._clock()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._stream.synchronize()  # no load writes any more
        if kind is None and self._error is not None:
            raise self._error

    def drop(self, units: Iterable[str], layer: int) -> None:
        """As `Pending.drop`, at any time before `computing(layer)`, also while one before runs."""
        with self._changed:
            self._pending.drop(units, layer)
            self._changed.notify_all()

    @contextmanager
    def computing(self, layer: int) -> Iterator[None]:
        """The computation of a layer goes inside; it is entered when its KV is on the device."""
        if self._error is None and not self._thread.is_alive():
            raise RuntimeError('a loader works inside its context: with Loader(...) as loader')
        with self._changed:
            self._layer, self._computing = layer, False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error is not None or self._has(layer))
            if self._error is not None:
                raise self._error
            self._computing = True
            self._changed.notify_all()
        if layer in self._events:
            self._events[layer].wait()
        start = self._clock()
        try:
            yield
        finally:
            if self._pending.policy == 'separate':
                Stream.current(self._device).synchronize()
            with self._changed:
                self._spans.append(Span(COMPUTE, layer, start, self._clock()))
                self._layer, self._computing = layer + 1, False
                self._changed.notify_all()

    @property
    def timeline(self) -> Timeline:
        """So far, from the start of the context on."""
        with self._changed:
            return Timeline.of(self._spans, self._origin)

    def _has(self, layer: int) -> bool:
        return self._issuing != layer and not self._pending.left(layer)

    @torch.inference_mode()
    def _run(self) -> None:
        issued: deque[tuple[int, str, float, Event]] = deque()
        try:
            with self._stream.use():
                while (item := self._next(issued)) is not None:
                    layer, unit = item
                    start = self._clock()
                    self._load(unit, layer)
                    event = self._stream.record()
                    issued.append((layer, unit, start, event))
                    if event.done:  # on a CPU it always is: its time ends before its layer starts
                        self._complete(issued)
                    with self._changed:
                        self._issuing, self._events[layer] = None, event
                        self._changed.notify_all()
                    if len(issued) >= self._in_flight:
                        self._complete(issued)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self, issued: deque) -> tuple[int, str] | None:
        """Waits for something that may be loaded; None at the end."""
        while True:
            with self._changed:
                while not self._closed:
                    item = None
                    if self._layer < self._pending.layers:
                        item = self._pending.take(self._layer, self._computing)
                    if item is not None:
                        self._issuing = item[0]
                        return item
                    if issued:
                        break
                    self._changed.wait()
            if not issued:
                return None
            self._complete(issued)

    def _complete(self, issued: deque) -> None:
        """Waits for the oldest load."""
        layer, unit, start, event = issued.popleft()
        event.wait()
        with self._changed:
            self._spans.append(Span(LOAD, layer, start, self._clock(), unit))
