"""Memory that has a name and never moves.

Knows names, addresses and bytes. Does not know what the bytes mean, nor who computes with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

Place = tuple[int, torch.dtype, torch.Size]  # address, dtype, shape


class BufferMovedError(RuntimeError):
    """A buffer is no longer where it was made; the message says which."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """A contiguous tensor under a name, on a device or on the host.

    Address, dtype and shape stay as they were when it was made: who captured the address goes on
    using it. So it is written in place and never rebound. Raises ValueError for no name and for a
    tensor that is not contiguous.
    """

    name: str
    tensor: Tensor = field(repr=False)
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError('a buffer needs a name')
        if not self.tensor.is_contiguous():
            raise ValueError(f'buffer {self.name!r} must be contiguous: its bytes are one range')
        object.__setattr__(self, 'place', _place(self.tensor))

    @classmethod
    def zeros(
        cls,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: str | torch.device = 'cpu',
    ) -> Buffer:
        """New memory, all zero."""
        return cls(name, torch.zeros(tuple(shape), dtype=dtype, device=device))

    @property
    def address(self) -> int:
        """Of its first byte, when it was made."""
        return self.place[0]

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    @property
    def bytes(self) -> int:
        """How many."""
        return self.tensor.nbytes

    @property
    def raw(self) -> Tensor:
        """The same memory as uint8 [bytes]; no copy."""
        return self.tensor.view(-1).view(torch.uint8)

    @torch.inference_mode()
    def write(self, source: Tensor) -> None:
        """Copies `source` in, from whatever device it is on.

        Raises ValueError for another shape or dtype, BufferMovedError for a buffer that was
        rebound.
        """
        self.require_unmoved()
        if (source.dtype, source.shape) != (self.tensor.dtype, self.tensor.shape):
            raise ValueError(
                f'buffer {self.name!r} holds {describe(self.tensor)}, not {describe(source)}'
            )
        self.tensor.copy_(source)

    def equals(self, other: Buffer) -> bool:
        """Same dtype, shape and bytes: a NaN equals itself, and -0.0 is not 0.0."""
        alike = self.place[1:] == other.place[1:]
        return alike and torch.equal(self.raw, other.raw.to(self.device))

    def digest(self) -> str:
        """32 hex digits from the bytes."""
        return hashlib.blake2b(self.raw.cpu().numpy().data, digest_size=16).hexdigest()

    def require_unmoved(self) -> None:
        """Raise BufferMovedError if the tensor was rebound, resized or retyped."""
        if _place(self.tensor) != self.place:
            address, dtype, shape = self.place
            raise BufferMovedError(
                f'buffer {self.name!r} was made as {_named(dtype, shape)} at {address:#x} and is '
                f'now {describe(self.tensor)} at {self.tensor.data_ptr():#x}: its storage was '
                'rebound; write into it instead'
            )


class Buffers:
    """A closed set of buffers, each name once. Raises ValueError for a name that comes twice."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self._by_name: dict[str, Buffer] = {}
        for buffer in buffers:
            if buffer.name in self._by_name:
                raise ValueError(f'two buffers have the name {buffer.name!r}')
            self._by_name[buffer.name] = buffer

    def __iter__(self) -> Iterator[Buffer]:
        """In the order in which they were given."""
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Buffer:
        """Raises LookupError with the names that there are."""
        if name not in self._by_name:
            raise LookupError(f'no buffer {name!r}; there are: {", ".join(self._by_name)}')
        return self._by_name[name]

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(buffer.bytes for buffer in self)

    def require_unmoved(self) -> None:
        """Raise BufferMovedError if one of them moved."""
        for buffer in self._by_name.values():
            tensor = buffer.tensor  # as `_place`, without two calls for each, before every replay
            if (tensor.data_ptr(), tensor.dtype, tensor.shape) != buffer.place:
                buffer.require_unmoved()

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Put the bytes of now back when the context ends, if the buffers have not moved."""
        kept = [buffer.tensor.clone() for buffer in self]
        try:
            yield
        finally:
            for buffer, tensor in zip(self, kept, strict=True):
                buffer.write(tensor)


def describe(tensor: Tensor) -> str:
    """As 'float32 [2, 3]'."""
    return _named(tensor.dtype, tensor.shape)


def _named(dtype: torch.dtype, shape: torch.Size) -> str:
    return f'{str(dtype).removeprefix("torch.")} {list(shape)}'


def _place(tensor: Tensor) -> Place:
    return tensor.data_ptr(), tensor.dtype, tensor.shape
