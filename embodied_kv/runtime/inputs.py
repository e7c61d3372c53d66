"""What the host tells a step: small arrays in one buffer, sent to the device by one copy.

Knows names, numbers and bytes. Does not know what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

ALIGNED = 16  # bytes that each field begins at a multiple of

Fields = Mapping[str, tuple[int, type[np.generic]]]  # name -> how many numbers, of which type


@dataclass(frozen=True, eq=False)
class Field:
    """One array: where the host writes it, and where the device reads it."""

    host: np.ndarray
    device: Tensor


class StepInputs:
    """The fields of a kind of step, each as long as its longest use.

    On CUDA the host's side is pinned, and `send` copies all of it asynchronously on the current
    stream; so one thread writes and sends, and a step that was sent is waited for before the next
    one is written. On a CPU both sides are the same memory, and nothing is sent.
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
        """The first numbers of a field, in this shape: the same memory for whoever asks.

        Raises LookupError for no such field, ValueError for more numbers than it has.
        """
        if (name, shape) not in self._cuts:
            self._cuts[name, shape] = self._cut(name, shape)
        return self._cuts[name, shape]

    def _cut(self, name: str, shape: tuple[int, ...]) -> Field:
        if name not in self._fields:
            raise LookupError(f'no field {name!r}; there are: {", ".join(self._fields)}')
        most, kind = self._fields[name]
        if prod(shape) > most:
            raise ValueError(f'field {name!r} holds {most} numbers, not {list(shape)}')
        begin = self._begins[name]
        used = slice(begin, begin + prod(shape) * np.dtype(kind).itemsize)
        host = self._host[used].numpy().view(kind).reshape(shape)
        like = torch.from_numpy(np.zeros(0, kind)).dtype
        return Field(host, self._device[used].view(like).view(shape))

    def send(self) -> None:
        """What was written is there for whatever is launched from now on."""
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)


def longest(uses: Sequence[Fields]) -> dict[str, tuple[int, type[np.generic]]]:
    """Every field of these uses, each as long as its longest one."""
    found: dict[str, tuple[int, type[np.generic]]] = {}
    for name, (numbers, kind) in (field for use in uses for field in use.items()):
        found[name] = max(numbers, found.get(name, (0, kind))[0]), kind
    return found
