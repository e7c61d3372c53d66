"""Checkpoints on the Hugging Face hub, and files there that a checkpoint only names.

The cache is that of huggingface_hub (HF_HOME), which keeps a folder for each commit. Only files
that are read here are fetched, none of them pickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from embodied_kv import storage
from embodied_kv.model.files import CheckpointError

Say = Callable[[str], object]

# owner/name@revision; not a path that begins with a dot, and not a file of weights.
NAME = re.compile(r'(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?')
COMMIT = re.compile(r'[0-9a-f]{40}')
FILES = '*.json', '*.jinja', '*.safetensors', '*.model', 'params/*'
NOT_READ = 'checkpoints/*', 'training_state/*', 'optimizer*'
TIMEOUT = 10.0  # s, for the first answer
REMEDIES = storage.REMEDIES | dict.fromkeys(storage.FULL, 'free some space')


@dataclass(frozen=True)
class Located:
    """A checkpoint on this machine. source: 'owner/name@commit' of the hub; '' for a path."""

    path: Path
    source: str = ''


def silent(line: str) -> None:
    """Drop a line for the user."""


def locate(
    name: str | Path, say: Say = silent, offline: str = '', parameter: str = 'checkpoint'
) -> Located:
    """Return a path as it is, or the snapshot of a repository on the hub, fetched if need be.

    Args:
        name: A path, or owner/name@revision. A path that exists wins.
        say: Receives the commit, and whether it is an older one because the hub does not answer.
        offline: Why nothing may be fetched, so that only the cache is used; '' if it may.
        parameter: The parameter that the name is from, for errors.

    Raises:
        CheckpointError: There is neither such a path nor such a repository, or it cannot be read.
    """
    path = Path(name)
    parts = NAME.fullmatch(str(name))
    if path.exists() or parts is None or path.suffix == '.safetensors':
        return Located(path)
    repository, revision = parts['name'], parts['revision'] or 'main'
    try:
        folder = _snapshot(repository, revision, say, offline)
    except CheckpointError as error:
        raise CheckpointError(
            f"{parameter} must be a folder or a repository of the Hugging Face hub (got '{name}', "
            f'which does not exist here; {error})'
        ) from error
    say(f'{repository} is at commit {folder.name} of the Hugging Face hub, in {folder}')
    return Located(folder, f'{repository}@{folder.name}')


def fetch(repository: str, file: str, say: Say = silent) -> Path:
    """Return a file of a folder, or of a repository from the cache or the hub.

    Raises CheckpointError.
    """
    if (local := Path(repository) / file).is_file():
        return local
    try:
        cached = try_to_load_from_cache(repository, file)
        if isinstance(cached, str):
            return Path(cached)
        path = Path(hf_hub_download(repository, file, etag_timeout=TIMEOUT))
    except (OSError, HTTPError, EntryNotFoundError, ValueError) as error:
        raise CheckpointError(_reason(repository, 'main', error)) from error
    say(f'{file} of {repository} was fetched from the Hugging Face hub')
    return path


def _snapshot(repository: str, revision: str, say: Say, offline: str) -> Path:
    """Return the folder of a revision. Raises CheckpointError with the reason alone."""
    if COMMIT.fullmatch(revision) or offline:  # a commit never changes
        try:
            return _download(repository, revision, is_local=True)
        except LocalEntryNotFoundError as error:
            if offline:
                raise CheckpointError(
                    f'no complete snapshot of {repository} is in the cache, and nothing is '
                    f'fetched: {offline}'
                ) from error
    try:
        HfApi().model_info(repository, revision=revision, timeout=TIMEOUT)
        return _download(repository, revision)
    except (RepositoryNotFoundError, RevisionNotFoundError, ValueError) as error:
        raise CheckpointError(_reason(repository, revision, error)) from error
    except (OSError, HTTPError) as error:
        reason = _reason(repository, revision, error)
        try:
            folder = _download(repository, revision, is_local=True)
        except LocalEntryNotFoundError:
            raise CheckpointError(
                f'{reason}, and no complete snapshot is in the cache; connect this machine, or '
                f'copy the folder to it'
            ) from error
        fetched = datetime.fromtimestamp(folder.stat().st_mtime)
        say(f'{reason}; the snapshot of {fetched:%Y-%m-%d %H:%M} in the cache is used')
        return folder


def _download(repository: str, revision: str, is_local: bool = False) -> Path:
    return Path(
        snapshot_download(
            repository,
            revision=revision,
            allow_patterns=[*FILES],
            ignore_patterns=[*NOT_READ],
            etag_timeout=TIMEOUT,
            local_files_only=is_local,
        )
    )


def _reason(repository: str, revision: str, error: Exception) -> str:
    """Return the reason why the hub failed, with the remedy."""
    if isinstance(error, GatedRepoError):
        return (
            f'{repository} is gated; accept its licence on the hub, and log in with '
            '`hf auth login`'
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f'the hub has no repository {repository}; correct the name, or log in with '
            '`hf auth login` if it is private'
        )
    if isinstance(error, RevisionNotFoundError):
        return f'{repository} has no revision {revision}; name a branch, a tag or a commit'
    first = str(error).strip().partition('\n')[0]
    if isinstance(error, OSError) and error.errno in REMEDIES:
        remedy = REMEDIES[error.errno]
        return f'the cache of the hub cannot be written ({first}); {remedy}, or set HF_HOME'
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return f'{repository} has no such file ({first})'
    return f'the hub does not answer for {repository} ({type(error).__name__}: {first})'
