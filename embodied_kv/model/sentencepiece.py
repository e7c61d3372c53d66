"""Reader of SentencePiece `.model` files: BPE with byte fallback, as Gemma has, for `tokenizers`.

Other models (unigram, a dummy prefix, a normaliser that rewrites text) are refused, because their
ids would differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPACE = '\u2581'  # a space in the vocabulary
BPE = 2  # TrainerSpec.model_type
# SentencePiece.type. Text with the name of a control or byte piece remains text.
NORMAL, UNKNOWN, USER_DEFINED, UNUSED = 1, 2, 4, 5
# Fields of sentencepiece_model.proto: model, piece, trainer, normaliser.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
PIECE, SCORE, TYPE = 1, 2, 3
MODEL_TYPE, BYTE_FALLBACK = 3, 35
CHARSMAP, DUMMY_PREFIX, REMOVE_EXTRA_SPACES, ESCAPE_SPACES = 2, 3, 4, 5


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary. score: higher ones merge first. kind: SentencePiece.type."""

    text: str
    score: float
    kind: int


def read_backend(path: str | Path) -> Tokenizer:
    """Return the tokenizer of a `.model` file. Raises ValueError where it cannot be read."""
    path = Path(path)
    try:
        pieces, settings = _parse(path.read_bytes())
    except (LookupError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise ValueError(f'{path} is not a SentencePiece model: {error!r}') from error
    for setting, wanted, found in settings:
        if found != wanted:
            raise ValueError(f'{path}: {setting} is {found}, only {wanted} is supported')
    return _backend(pieces)


def _backend(pieces: list[Piece]) -> Tokenizer:
    vocabulary = {piece.text: i for i, piece in enumerate(pieces)}
    unknown = next((piece.text for piece in pieces if piece.kind == UNKNOWN), None)
    merges = _merges(pieces, vocabulary)
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(' ', SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(' ', 'merged_with_previous')
    steps = decoders.Replace(SPACE, ' '), decoders.ByteFallback(), decoders.Fuse()
    backend.decoder = decoders.Sequence(list(steps))
    # Added tokens are matched whole before merging, in text with spaces replaced.
    whole = [piece.text for piece in pieces if piece.kind == USER_DEFINED]
    backend.add_tokens([AddedToken(text, normalized=True, special=False) for text in whole])
    return backend


def _merges(pieces: list[Piece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return each split of a piece into two pieces, by descending score of the piece."""
    found = []
    words = {p.text: p for p in pieces if p.kind in (NORMAL, USER_DEFINED, UNUSED)}
    for piece in words.values():
        splits = (
            (piece.text[:i], piece.text[i:])
            for i in range(1, len(piece.text))
            if piece.text[:i] in words and piece.text[i:] in words
        )
        found += [
            (piece.score, *pair) for pair in sorted(splits, key=lambda p: (ids[p[0]], ids[p[1]]))
        ]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _parse(data: bytes) -> tuple[list[Piece], list[tuple[str, object, object]]]:
    """Return the pieces, and (name, required, found) of each setting that changes ids."""
    pieces, trainer, normaliser = [], {}, {}
    for field, value in _fields(data):
        if field == PIECES:
            piece = dict(_fields(value))
            (score,) = struct.unpack('<f', piece.get(SCORE, b'\0\0\0\0'))
            pieces.append(Piece(piece[PIECE].decode(), score, piece.get(TYPE, NORMAL)))
        elif field == TRAINER:
            trainer = dict(_fields(value))
        elif field == NORMALIZER:
            normaliser = dict(_fields(value))
    if not pieces:
        raise ValueError('it has no pieces')
    return pieces, [
        ('model_type', BPE, trainer.get(MODEL_TYPE, 1)),
        ('byte_fallback', True, bool(trainer.get(BYTE_FALLBACK, 0))),
        ('precompiled_charsmap', b'', normaliser.get(CHARSMAP, b'')),
        ('add_dummy_prefix', False, bool(normaliser.get(DUMMY_PREFIX, 1))),
        ('remove_extra_whitespaces', False, bool(normaliser.get(REMOVE_EXTRA_SPACES, 1))),
        ('escape_whitespaces', True, bool(normaliser.get(ESCAPE_SPACES, 1))),
    ]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value, int or bytes, of each field of a protobuf message."""
    value: int | bytes
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
        else:
            if wire == 2:
                size, at = _varint(data, at)
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
            else:
                raise ValueError(f'field {field} is of wire type {wire}')
            value, at = data[at : at + size], at + size
            if at > len(data):
                raise ValueError('it is truncated')
        yield field, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if shift > 63:
            raise ValueError('a number has more than 64 bits')
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
