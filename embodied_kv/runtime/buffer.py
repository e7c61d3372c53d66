"""Named memory that never moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

Place = tuple[int, torch.dtype, torch.Size]  # address, dtype, shape


class BufferMovedError(RuntimeError):
    """A buffer is no longer where it was made; the message names it."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """A contiguous tensor with a name, on a device or on the host.

    Address, dtype and shape never change, because captured computations keep the address. So it is
    written in place and never rebound. Raises ValueError for an empty name and for a tensor that
    is not contiguous.
    """

    name: str
    tensor: Tensor = field(repr=False)
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name of a buffer must not be empty (got '')")
        if not self.tensor.is_contiguous():
            raise ValueError(f'buffer {self.name!r} must be contiguous')
        object.__setattr__(self, 'place', _place(self.tensor))

    @property
    def address(self) -> int:
        """Return the address of its first byte when it was made."""
        return self.place[0]

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    @property
    def bytes(self) -> int:
        return self.tensor.nbytes

    @torch.inference_mode()
    def write(self, source: Tensor) -> None:
        """Copy `source` into the buffer, from any device.

        Raises ValueError for another shape or dtype, BufferMovedError for a buffer that was
        rebound.
        """
        self.require_unmoved()
        if (source.dtype, source.shape) != (self.tensor.dtype, self.tensor.shape):
            raise ValueError(
                f'buffer {self.name!r} must be written with {describe(self.tensor)} (got '
                f'{describe(source)})'
            )
        self.tensor.copy_(source)

    def require_unmoved(self) -> None:
        """Raise BufferMovedError if the tensor was rebound, resized or retyped."""
        if _place(self.tensor) != self.place:
            address, dtype, shape = self.place
            raise BufferMovedError(
                f'buffer {self.name!r} must stay {_named(dtype, shape)} at {address:#x} (got '
                f'{describe(self.tensor)} at {self.tensor.data_ptr():#x}); write into it instead '
                'of rebinding it'
            )


class Buffers:
    """A closed set of buffers with unique names. Raises ValueError for a repeated name."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self._by_name: dict[str, Buffer] = {}
        for buffer in buffers:
            if buffer.name in self._by_name:
                raise ValueError(f'names of buffers must be unique (got {buffer.name!r} twice)')
            self._by_name[buffer.name] = buffer

    def __iter__(self) -> Iterator[Buffer]:
        """Yield the buffers in the order in which they were given."""
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Buffer:
        """Return a buffer by name. Raises LookupError with the known names."""
        if name not in self._by_name:
            raise LookupError(f'buffer must be one of {", ".join(self._by_name)} (got {name!r})')
        return self._by_name[name]

    def require_unmoved(self) -> None:
        """Raise BufferMovedError if one of them moved."""
        for buffer in self._by_name.values():
            tensor = buffer.tensor  # inlined `_place`, because this runs before every replay
            if (tensor.data_ptr(), tensor.dtype, tensor.shape) != buffer.place:
                buffer.require_unmoved()

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore the present bytes at the end of the context, if the buffers have not moved."""
        kept = [buffer.tensor.clone() for buffer in self]
        try:
            yield
        finally:
            for buffer, tensor in zip(self, kept, strict=True):
                buffer.write(tensor)


def describe(tensor: Tensor) -> str:
    """Return dtype and shape, as 'float32 [2, 3]'."""
    return _named(tensor.dtype, tensor.shape)


def _named(dtype: torch.dtype, shape: torch.Size) -> str:
    return f'{str(dtype).removeprefix("torch.")} {list(shape)}'


def _place(tensor: Tensor) -> Place:
    return tensor.data_ptr(), tensor.dtype, tensor.shape
