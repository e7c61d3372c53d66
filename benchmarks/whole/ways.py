"""The rows of the table: all parts on, then each of them off. Knows names alone."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Parts:
    """What is on. See the command's help for what is done where one is off."""

    shared: bool = True
    capsules: bool = True
    compression: bool = True
    keep: bool = True
    kairos: bool = True


WAYS = {'all': Parts()} | {
    f'no {field.name}': replace(Parts(), **{field.name: False}) for field in fields(Parts)
}
