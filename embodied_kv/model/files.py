"""Reading of the small files of a checkpoint; each error names the file and the remedy."""

from __future__ import annotations

import json
from pathlib import Path

# First bytes, in lower case, of what a failed download leaves instead of a file.
PLACEHOLDERS = {
    b'version https://git-lfs': 'a pointer of Git LFS',
    b'<!doctype html': 'a web page',
    b'<html': 'a web page',
}


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message gives the reason."""


def refuse_placeholder(path: Path) -> None:
    """Raise CheckpointError where a file is the pointer of Git LFS, or a web page."""
    with path.open('rb') as stream:
        start = stream.read(64).lstrip().lower()
    for beginning, name in PLACEHOLDERS.items():
        if start.startswith(beginning):
            raise CheckpointError(
                f'{path} must be the file itself (got {name}); run `git lfs pull` in its '
                'repository, or download the file with `hf download`'
            )


def read_json(path: Path) -> dict:
    """Return a JSON object in UTF-8, UTF-16 or UTF-32, with or without a byte-order mark.

    Raises CheckpointError for anything else.
    """
    if not path.is_file():
        raise CheckpointError(f'{path} does not exist')
    refuse_placeholder(path)
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(f'{path} is not JSON: {error}') from error
    if not isinstance(value, dict):
        raise CheckpointError(f'{path} is not a JSON object')
    return value
