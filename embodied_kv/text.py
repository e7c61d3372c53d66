"""What others sent, as one line of a log or of an answer.

Knows characters and exceptions. Does not know nodes, or who said what.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

LINE = 1000  # characters of a line that is said; of what others sent, `shown` takes less
NAMES = 16  # that are listed in one line


def shown(text: object, most: int = 60) -> str:
    """Text in one line: what cannot be printed is escaped, what is longer than `most` is cut.

    So no line break, escape sequence or lone surrogate of it gets into a log, where it would
    forge a line, command the terminal, or fail to be encoded.
    """
    whole = str(text)
    line = ''.join(map(_printable, whole[:most]))
    return line if len(whole) <= most else f'{line}... ({len(whole)} characters)'


def is_text(text: object) -> bool:
    """Return whether it is a str that UTF-8 can encode: a lone surrogate cannot be."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed(names: Sequence[str]) -> str:
    """Names of a message, each of them shown, and not too many."""
    line = ', '.join(shown(name) for name in names[:NAMES]) or 'none'
    return line if len(names) <= NAMES else f'{line}, and {len(names) - NAMES} more'


def reason(error: BaseException) -> str:
    """An error's own words in one line, or its name where it has none."""
    # A LookupError says its message with quotes around it.
    said = error.args[0] if isinstance(error, LookupError) and error.args else error
    return '; '.join(line.strip() for line in str(said).splitlines()) or type(error).__name__


def trace(error: BaseException) -> str:
    """Where an error came from, behind those that led to it; their words are shown."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    path = ''.join(traceback.format_tb(error.__traceback__))
    words = f'{type(error).__name__}: {shown(error, LINE)}'
    own = f'Traceback (most recent call last):\n{path}{words}'
    return own if before is None else f'{trace(before)}\nwhich led to\n{own}'


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode('unicode_escape').decode()
