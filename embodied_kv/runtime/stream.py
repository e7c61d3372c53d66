"""Order and completion of work on a device.

On CUDA these are streams and events. A CPU does everything in order, so there a stream orders
nothing and an event is done when it is recorded. Tests set `Stream.emulated` to a class whose
streams on a CPU are as late as those of a device may be.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Event:
    """A point in a stream's work; `Stream.record` makes one."""

    cuda: torch.cuda.Event | None

    @property
    def done(self) -> bool:
        """Return whether everything before it has finished."""
        return self.cuda is None or self.cuda.query()

    def wait(self) -> None:
        """Block the calling thread until it is done."""
        if self.cuda is not None:
            self.cuda.synchronize()


@dataclass(frozen=True)
class Stream:
    """Work that runs in the order in which it was launched. cuda: None on a CPU."""

    cuda: torch.cuda.Stream | None
    emulated: ClassVar[type[Stream] | None] = None  # used on a CPU in place of this class

    @classmethod
    def on(cls, device: str | torch.device) -> Stream:
        """Return a new stream of the device."""
        device = torch.device(device)
        if device.type == 'cuda':
            return cls(torch.cuda.Stream(device))
        return cls(None) if cls.emulated is None else cls.emulated.on(device)

    @classmethod
    def current(cls, device: str | torch.device) -> Stream:
        """Return the stream on which the calling thread launches work."""
        device = torch.device(device)
        if device.type == 'cuda':
            return cls(torch.cuda.current_stream(device))
        return cls(None) if cls.emulated is None else cls.emulated.current(device)

    @property
    def device(self) -> torch.device:
        return torch.device('cpu') if self.cuda is None else self.cuda.device

    def use(self) -> AbstractContextManager[object]:
        """Launch work on this stream within the context."""
        return nullcontext() if self.cuda is None else torch.cuda.stream(self.cuda)

    def record(self) -> Event:
        """Return the point after all work launched so far."""
        if self.cuda is None:
            return Event(None)
        # A blocking event lets the waiting thread sleep instead of polling.
        return Event(self.cuda.record_event(torch.cuda.Event(blocking=True)))

    def wait(self, event: Event) -> None:
        """Start work launched from now on after the event; the calling thread does not wait."""
        if event.cuda is not None and self.cuda is not None:
            self.cuda.wait_event(event.cuda)

    def reads(self, *tensors: Tensor) -> None:
        """Keep the memory of tensors of another stream until work launched so far has finished."""
        if self.cuda is not None:
            for tensor in tensors:
                tensor.record_stream(self.cuda)

    def synchronize(self) -> None:
        """Block the calling thread until all work launched so far has finished."""
        self.record().wait()
