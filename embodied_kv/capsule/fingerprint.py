"""The settings that two engines must share for one to continue a session of the other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from embodied_kv.text import shown

NAMED = 8  # settings that one error lists
REMEDY = 'start the engine with the settings of the capsule, or take a new capsule'


class Fingerprint(str):
    """A digest of 32 hex digits, equal exactly if all settings are equal.

    `settings` are plain values by name, kept so that an error can name the difference. A plain
    string in place of a fingerprint has none.
    """

    settings: Mapping[str, object]

    def __new__(cls, digits: str, settings: Mapping[str, object]) -> Fingerprint:
        made = super().__new__(cls, digits)
        made.settings = dict(settings)
        return made

    # typeshed types this method of `str` too narrowly for subclasses.
    def __getnewargs__(self) -> tuple[str, Mapping[str, object]]:  # type: ignore[override]
        """Return the arguments with which `copy` and `pickle` make an equal fingerprint."""
        return str(self), self.settings

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Fingerprint:
        """Return the fingerprint of settings that JSON can express."""
        text = json.dumps(settings, sort_keys=True, allow_nan=False)
        return cls(hashlib.blake2b(text.encode(), digest_size=16).hexdigest(), settings)


def mismatch(theirs: str, ours: str) -> str:
    """Return why an engine of fingerprint `ours` refuses a capsule of `theirs`; with a remedy."""
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
