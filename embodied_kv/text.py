"""Safe single lines of text from other programs and of exceptions, for logs and responses."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

LINE = 1000  # characters of a line
NAMES = 16  # names in one line


def shown(text: object, most: int = 60) -> str:
    """Return text in one line, with unprintable characters escaped, cut at `most` characters.

    So a line break, escape sequence or lone surrogate cannot forge a line of a log, control the
    terminal, or make the encoding fail.
    """
    whole = str(text)
    line = ''.join(map(_printable, whole[:most]))
    return line if len(whole) <= most else f'{line}... ({len(whole)} characters)'


def is_text(text: object) -> bool:
    """Return whether an object is a str without lone surrogates, which UTF-8 can encode."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed(names: Sequence[str]) -> str:
    """Return at most `NAMES` names in one line."""
    line = ', '.join(shown(name) for name in names[:NAMES]) or 'none'
    return line if len(names) <= NAMES else f'{line}, and {len(names) - NAMES} more'


def reason(error: BaseException) -> str:
    """Return the message of an error in one line, or its type if it has none."""
    # str() of a KeyError puts its message in quotes.
    message = error.args[0] if isinstance(error, LookupError) and error.args else error
    return '; '.join(line.strip() for line in str(message).splitlines()) or type(error).__name__


def trace(error: BaseException) -> str:
    """Return the traceback of an error, after those of its causes, with safe messages."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    path = ''.join(traceback.format_tb(error.__traceback__))
    words = f'{type(error).__name__}: {shown(error, LINE)}'
    own = f'Traceback (most recent call last):\n{path}{words}'
    return own if before is None else f'{trace(before)}\nwhich led to\n{own}'


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode('unicode_escape').decode()
