"""A field of a parameter dataclass: its default, its description and when it may change."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def parameter(default: Any, help: str, when: str = 'configure', **more: object) -> Any:
    """Return a dataclass field that is declared as a ROS parameter or a command-line option.

    Args:
        default: The default value.
        help: The description: a noun phrase with the unit.
        when: The latest moment of a change: 'start', 'configure' or 'live'.
        more: For example `range`, of the value or of each element of an array, and `old`, former
            names, which are refused with the present one.
    """
    return field(default=default, metadata={'help': help, 'when': when, **more})
