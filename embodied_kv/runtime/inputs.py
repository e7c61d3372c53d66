"""The host's inputs of a step: small arrays in one buffer, sent to the device by one copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

ALIGNED = 16  # bytes; each field begins at a multiple of it

Fields = Mapping[str, tuple[int, type[np.generic]]]  # name -> number of values, and their type


@dataclass(frozen=True, eq=False)
class Field:
    """One array: the host writes `host`, and the device reads `device`."""

    host: np.ndarray
    device: Tensor


class StepInputs:
    """The fields of a kind of step, each as long as its longest use.

    On CUDA the host's side is pinned, and `send` copies all of it asynchronously on the current
    stream. So one thread must write and send, and wait for a sent step before it writes the next
    one. On a CPU both sides are the same memory, and nothing is sent.
    """

    def __init__(self, device: str | torch.device, fields: Fields) -> None:
        self._begins: dict[str, int] = {}
        self._fields = dict(fields)
        self._cuts: dict[tuple[str, tuple[int, ...]], Field] = {}
        end = 0
        for name, (numbers, kind) in fields.items():
            self._begins[name] = end
            end += -(-numbers * np.dtype(kind).itemsize // ALIGNED) * ALIGNED
        on_cpu = torch.device(device).type == 'cpu'
        self._host = torch.zeros(end, dtype=torch.uint8, pin_memory=not on_cpu)
        self._device = self._host if on_cpu else self._host.to(device)

    def cut(self, name: str, *shape: int) -> Field:
        """Return the first numbers of a field in this shape, the same memory for each caller.

        Raises LookupError for an unknown field, ValueError for more numbers than it has.
        """
        if (name, shape) not in self._cuts:
            self._cuts[name, shape] = self._cut(name, shape)
        return self._cuts[name, shape]

    def _cut(self, name: str, shape: tuple[int, ...]) -> Field:
        if name not in self._fields:
            raise LookupError(f'field must be one of {", ".join(self._fields)} (got {name!r})')
        most, kind = self._fields[name]
        if prod(shape) > most:
            raise ValueError(
                f'shape of field {name!r} must have at most {most} numbers (got {list(shape)})'
            )
        begin = self._begins[name]
        used = slice(begin, begin + prod(shape) * np.dtype(kind).itemsize)
        host = self._host[used].numpy().view(kind).reshape(shape)
        like = torch.from_numpy(np.zeros(0, kind)).dtype
        return Field(host, self._device[used].view(like).view(shape))

    def saved(self) -> np.ndarray:
        """Return a copy of all fields, uint8, for `restore`."""
        return self._host.numpy().copy()

    def restore(self, saved: np.ndarray) -> None:
        """Write all fields as they were, and send them."""
        self._host.numpy()[:] = saved
        self.send()

    def send(self) -> None:
        """Send what was written; work that is launched afterwards reads it."""
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)


def longest(uses: Sequence[Fields]) -> dict[str, tuple[int, type[np.generic]]]:
    """Return every field of these uses, each as long as its longest one."""
    found: dict[str, tuple[int, type[np.generic]]] = {}
    for name, (numbers, kind) in (field for use in uses for field in use.items()):
        found[name] = max(numbers, found.get(name, (0, kind))[0]), kind
    return found
