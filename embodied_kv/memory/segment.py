"""A segment of memory.

Knows ids, kinds and text. Does not know tokens, embeddings or files.

Source: KEEP, section 1 (embodied memory is structured: a segment is the state of one object, the
record of one task, and so on).
"""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.errors import CodedError

KINDS = ('object', 'place', 'agent', 'task', 'note')
MAX_ID = 128  # characters
MAX_TEXT = 4096


class MemoryFault(CodedError):
    """Why memory cannot be kept or used; meant for the user."""


@dataclass(frozen=True)
class Segment:
    """One thing that is remembered.

    version: 1, and one more with each change of kind or text. step: of the world, at the last
    change. Raises MemoryFault for an unknown kind, and for an id or a text that is empty, too long
    or not printable; a text may have tabs and line breaks.
    """

    id: str
    kind: str
    text: str
    version: int = 1
    step: int = 0

    def __post_init__(self) -> None:
        check_id(self.id)
        if self.kind not in KINDS:
            raise MemoryFault(
                f'segment {self.id!r}: no kind {str(self.kind)[:80]!r}; there are: '
                f'{", ".join(KINDS)}'
            )
        _check(f'the text of segment {self.id!r}', self.text, MAX_TEXT, '\n\t')


def check_id(id: str) -> None:
    """Raises MemoryFault for what cannot be an id."""
    _check('a segment id', id, MAX_ID, '')


def _check(what: str, value: str, longest: int, also: str) -> None:
    """also: characters that are fine beside the printable ones."""
    if not isinstance(value, str) or not value.strip():
        raise MemoryFault(f'{what} must be words, not {str(value)[:80]!r}')
    if len(value) > longest:
        raise MemoryFault(f'{what} has {len(value)} characters, at most {longest} are kept')
    if not value.translate(dict.fromkeys(map(ord, also))).isprintable():
        raise MemoryFault(f'{what} has characters that cannot be printed: {value[:80]!r}')
