"""A number of ours beside one that was recorded, and the line that says how far they are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Quantity:
    """Our value of what a file may record. where: the entries that mean something, all if None.

    tolerance: one for all, or of the last dimension's entries.
    """

    value: Tensor
    tolerance: float | Tensor
    where: Tensor | None = None

    def compare(self, theirs: Tensor) -> tuple[float, bool]:
        """Largest absolute difference where it counts, and whether all are within tolerance.

        Infinite where the shapes differ or one is NaN.
        """
        if self.value.shape != theirs.shape:
            return float('inf'), False
        difference = (self.value.cpu().double() - theirs.cpu().double()).abs()
        difference = difference.nan_to_num(float('inf'))
        within = difference <= self.tolerance
        if self.where is not None:
            where = self.where.cpu()
            difference, within = difference[where], within[where]
        error = float(difference.max()) if difference.numel() else 0.0
        return error, bool(within.all())


def report(
    path: str,
    names: Sequence[str],
    read: Callable[[str], Tensor],
    known: Mapping[str, Quantity],
) -> bool:
    """Print a line for every recorded quantity, then the verdict; true if all are ok."""
    failed, width = [], max(44, *(len(f'expected.{name}') for name in names))
    for name in names:
        label = f'expected.{name}'
        if name not in known:
            failed.append(label)
            print(f'{label:<{width}} FAIL  unknown quantity')
            continue
        ours, theirs = known[name], read(name)
        error, ok = ours.compare(theirs)
        failed += [] if ok else [label]
        shapes = ''
        if ours.value.shape != theirs.shape:
            shapes = f'  shape {list(ours.value.shape)}, recorded {list(theirs.shape)}'
        print(
            f'{label:<{width}} max abs error {error:.2e}  '
            f'tolerance {_widest(ours.tolerance):.1e}  {"ok" if ok else "FAIL"}{shapes}'
        )
    count = len(names)
    if failed or not count:
        print(f'{path}: FAIL, {len(failed)} of {count} quantities: {", ".join(failed)}')
    else:
        print(f'{path}: ok, all {count} quantities within tolerance')
    return bool(count) and not failed


def _widest(tolerance: float | Tensor) -> float:
    return float(tolerance.max()) if isinstance(tolerance, Tensor) else tolerance
