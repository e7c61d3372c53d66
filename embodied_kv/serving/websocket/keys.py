"""The file of API keys: a name and a key on each line.

Knows the format and the permissions of the file. Does not know connections.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO

NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]{0,63}')
SHORTEST = 16  # characters of a key
FORM = 'write NAME KEY on each line, for example "arm-1 KEY", and # before a comment'


def read_keys(path: str) -> dict[str, str]:
    """Return the name of each key. Several keys may have one name, as while a key is replaced.

    Raises ValueError for a file that is no such list or that other users can access, and OSError.
    No message contains a key.
    """
    with open(Path(path).expanduser(), encoding='utf-8') as file:
        check_private(file)
        try:
            lines = file.read().split('\n')
        except UnicodeDecodeError:
            raise ValueError(f'{path} must be text in UTF-8; {FORM}') from None
    names: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not words[0].startswith('#'):
            name, key = _read(f'{path}, line {number}', words)
            if key in names:
                raise ValueError(f'{path}, line {number}: the key must differ from those before')
            names[key] = name
    if not names:
        raise ValueError(f'{path} has no key; {FORM}')
    return names


def check_private(file: IO) -> None:
    """Raises ValueError for a file that other users can access."""
    mode = os.fstat(file.fileno()).st_mode & 0o777
    if mode & 0o077:
        raise ValueError(
            f'{file.name} must be accessible to its owner only (got mode {mode:o}); '
            f'run chmod 600 {file.name}'
        )


def _read(where: str, words: list[str]) -> tuple[str, str]:
    if len(words) != 2:
        raise ValueError(f'{where} must be a name and a key (got {len(words)} words); {FORM}')
    name, key = words
    if not NAME.fullmatch(name):
        raise ValueError(
            f'{where}: the name must be 1 to 64 letters, digits, dots, _ and -; {FORM}'
        )
    if len(key) < SHORTEST or not key.isprintable():
        raise ValueError(
            f'{where}: the key of {name} must have at least {SHORTEST} printable characters '
            f'(got {len(key)}); create one with: openssl rand -hex 16'
        )
    return name, key
