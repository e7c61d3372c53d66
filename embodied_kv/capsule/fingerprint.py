"""What two engines must have in common for one to continue a session of the other.

Knows names and plain values. Does not know engines, capsules or files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from embodied_kv.text import shown

NAMED = 8  # settings that one refusal lists
REMEDY = 'start the engine with the settings of the capsule, or take a new capsule'


class Fingerprint(str):
    """32 hex digits, equal exactly where all settings are equal.

    settings: plain values by name. They are kept so that a refusal names what differs; a plain
    string in place of a fingerprint has none.
    """

    settings: Mapping[str, object]

    def __new__(cls, digits: str, settings: Mapping[str, object]) -> Fingerprint:
        made = super().__new__(cls, digits)
        made.settings = dict(settings)
        return made

    # typeshed fixes that of `str`, which is for its subclasses to change.
    def __getnewargs__(self) -> tuple[str, Mapping[str, object]]:  # type: ignore[override]
        """Return what `copy` and `pickle` make the same with."""
        return str(self), self.settings

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Fingerprint:
        """Return the fingerprint of these settings, which JSON must be able to express."""
        text = json.dumps(settings, sort_keys=True, allow_nan=False)
        return cls(hashlib.blake2b(text.encode(), digest_size=16).hexdigest(), settings)


def mismatch(theirs: str, ours: str) -> str:
    """Return why an engine `ours` refuses what `theirs` made: the differing settings, a remedy."""
    then, now = (getattr(one, 'settings', {}) for one in (theirs, ours))
    names = sorted({*then, *now}) if then and now else ()
    differ = [name for name in names if _value(then, name) != _value(now, name)]
    named = [
        f'{shown(name)} was {_value(then, name)} and is {_value(now, name)} here'
        for name in differ[:NAMED]
    ]
    if len(differ) > NAMED:
        named.append(f'{len(differ) - NAMED} more settings differ')
    why = '; '.join(named) or 'weights, dtype, kernels, layout or settings differ'
    return f'was made by {shown(theirs)}, this is {shown(ours)}: {why}; {REMEDY}'


def _value(settings: Mapping[str, object], name: str) -> str:
    """Return a setting as text, short enough for one line."""
    return shown(json.dumps(settings[name], sort_keys=True)) if name in settings else 'absent'
