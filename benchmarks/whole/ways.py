"""The rows of the table: all parts on, then each of them off. Knows only names."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Parts:
    """The parts that are on. The help of the command describes what replaces each of them."""

    shared: bool = True
    capsules: bool = True
    compression: bool = True
    keep: bool = True
    kairos: bool = True


WAYS = {'all': Parts()} | {
    f'no {field.name}': replace(Parts(), **{field.name: False}) for field in fields(Parts)
}
