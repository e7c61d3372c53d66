"""Loading of stored KV on a separate thread, during the computation that needs it later.

One thread loads one item after another, as the loading engine of the paper. On a GPU it uses its
own CUDA stream, so that copies from pinned memory overlap with computation, and it stays at most
`IN_FLIGHT` loads ahead, so that a load that a layer needs does not wait behind later ones.

Invariant: the computation of layer i starts after all loads of layer i, on any stream and thread.
The thread that enters `computing` therefore sleeps until the device has done these loads; the
stream that computes waits for no load, and neither does an action on the same stream.

Source: KEEP, section 4.3 (figure 8, balanced), and section 5 for the dependencies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Thread

import torch

from embodied_kv.runtime.stream import Event, Stream

IN_FLIGHT = 2  # maximum number of loads that the device has not completed


class LoadQueue:
    """The loads that the units of one prompt still need, over the layers of one pass.

    A unit that layer d does not recompute has no hidden state from there on, so its KV is needed
    in layers d, d + 1, ... to the last, which is known as soon as the unit is dropped. The next
    load is always of the lowest layer, and of the units in the order of the prompt. While a layer
    is computed, any later layer is loaded.
    """

    def __init__(self, layers: int, units: Sequence[str]) -> None:
        self.layers = layers
        self._order = {unit: i for i, unit in enumerate(units)}
        if len(self._order) != len(units):
            raise ValueError('units of a prompt must be distinct')
        self._dropped: set[str] = set()
        self._waiting: list[dict[str, None]] = [{} for _ in range(layers)]

    def drop(self, units: Iterable[str], layer: int) -> None:
        """Load these units for `layer` and all later layers; units already dropped are ignored.

        Raises LookupError for a unit that is not in the prompt.
        """
        for unit in sorted({*units} - self._dropped, key=self._order.__getitem__):
            self._dropped.add(unit)
            for waiting in self._waiting[layer:]:
                waiting[unit] = None

    def needs_load(self, layer: int) -> bool:
        """Return whether a layer needs a load that `next_load` has not returned yet."""
        return bool(self._waiting[layer])

    def next_load(self, layer: int, computing: bool) -> tuple[int, str] | None:
        """Return the next load as (layer, unit), or None if there is none now.

        `computing` states whether `layer` is being computed; otherwise it is waited for.
        """
        for at in range(layer + 1 if computing else layer, self.layers):
            if self._waiting[at]:
                unit = min(self._waiting[at], key=self._order.__getitem__)
                del self._waiting[at][unit]
                return at, unit
        return None


class Loader:
    """The loads of one pass over the layers, which run inside its context.

    Args:
        pending: What to load next.
        load: (unit, layer) puts that KV where the layer reads it. It runs on the loading thread in
            inference mode; on a GPU it enqueues its work on the current stream and does not wait
            for it. The next `computing`, or the end of the context, raises what it raised.
        device: The device that computes.
        after: What the device must complete before the first load writes; None: the work of the
            current stream.
        stream: Where loads are enqueued; None: a new one. CUDA has 32, which are then shared.
    """

    def __init__(
        self,
        pending: LoadQueue,
        load: Callable[[str, int], None],
        device: str | torch.device = 'cpu',
        after: Event | None = None,
        stream: Stream | None = None,
    ) -> None:
        self._pending, self._load, self._device = pending, load, torch.device(device)
        self._stream, self._after = stream or Stream.on(self._device), after
        self._changed = Condition()
        self._layer, self._computing, self._closed = 0, False, False
        self._error: BaseException | None = None
        self._issuing: int | None = None  # layer of the load that is being issued
        self._events: dict[int, Event] = {}  # after the last load of each layer
        self._thread = Thread(target=self._run, name='memory-loader', daemon=True)

    def __enter__(self) -> Loader:
        # Earlier work may still use the targets.
        self._stream.wait(self._after or Stream.current(self._device).record())
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._stream.synchronize()  # no load writes after this
        if kind is None and self._error is not None:
            raise self._error

    def drop(self, units: Iterable[str], layer: int) -> None:
        """Call `LoadQueue.drop`; allowed until `computing(layer)` is entered."""
        with self._changed:
            self._pending.drop(units, layer)
            self._changed.notify_all()

    @contextmanager
    def computing(self, layer: int) -> Iterator[None]:
        """Enclose the computation of a layer; entered when its KV is on the device."""
        if self._error is None and not self._thread.is_alive():
            raise RuntimeError('Loader must be used as a context: with Loader(...) as loader')
        with self._changed:
            self._layer, self._computing = layer, False
            self._changed.notify_all()
            while self._error is None and (
                self._issuing == layer or self._pending.needs_load(layer)
            ):
                self._changed.wait()
            if self._error is not None:
                raise self._error
            self._computing = True
            self._changed.notify_all()
        if layer in self._events:
            self._events[layer].wait()
        try:
            yield
        finally:
            with self._changed:
                self._layer, self._computing = layer + 1, False
                self._changed.notify_all()

    @torch.inference_mode()
    def _run(self) -> None:
        issued: deque[Event] = deque()
        try:
            with self._stream.use():
                while (item := self._next(issued)) is not None:
                    layer, unit = item
                    self._load(unit, layer)
                    event = self._stream.record()
                    issued.append(event)
                    if event.done:  # always on a CPU
                        self._complete(issued)
                    with self._changed:
                        self._issuing, self._events[layer] = None, event
                        self._changed.notify_all()
                    if len(issued) >= IN_FLIGHT:
                        self._complete(issued)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self, issued: deque[Event]) -> tuple[int, str] | None:
        """Wait for the next load; return None at the end."""
        while True:
            with self._changed:
                while not self._closed:
                    item = None
                    if self._layer < self._pending.layers:
                        item = self._pending.next_load(self._layer, self._computing)
                    if item is not None:
                        self._issuing = item[0]
                        return item
                    if issued:
                        break
                    self._changed.wait()
            if not issued:
                return None
            self._complete(issued)

    def _complete(self, issued: deque[Event]) -> None:
        """Wait for the oldest load."""
        issued.popleft().wait()
