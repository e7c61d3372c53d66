"""SentencePiece's `.model` file as a backend of `tokenizers`: BPE with byte fallback, as Gemma's.

Knows the file's protobuf fields and how the vocabulary's scores become merges. Refuses models that
work otherwise (unigram, a dummy prefix, a normaliser that rewrites text): their ids would differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPACE = '\u2581'  # how a vocabulary spells it
BPE = 2  # TrainerSpec.model_type
# SentencePiece.type. Text never becomes a control or byte piece by the spelling of its name.
NORMAL, UNKNOWN, USER_DEFINED, UNUSED = 1, 2, 4, 5
# Fields of sentencepiece_model.proto: of the whole, of a piece, of the trainer, of the normaliser.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
PIECE, SCORE, TYPE = 1, 2, 3
MODEL_TYPE, BYTE_FALLBACK = 3, 35
CHARSMAP, DUMMY_PREFIX, REMOVE_EXTRA_SPACES, ESCAPE_SPACES = 2, 3, 4, 5


@dataclass(frozen=True)
class Piece:
    """A word of the vocabulary, how early it is merged, and its kind (1 normal, 2 unknown, …)."""

    text: str
    score: float
    kind: int


def read_backend(path: str | Path) -> Tokenizer:
    """The tokenizer in a `.model` file. Raises ValueError that says why it cannot be read."""
    path = Path(path)
    try:
        pieces, settings = _parse(path.read_bytes())
    except (ValueError, IndexError, struct.error) as error:
        raise ValueError(f'{path} is not a SentencePiece model: {error}') from error
    for setting, wanted, there in settings:
        if there != wanted:
            raise ValueError(f'{path}: {setting} is {there}, only {wanted} is supported')
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
    # Found whole before anything is merged, and never merged: in the text as spaces are spelt.
    whole = [piece.text for piece in pieces if piece.kind == USER_DEFINED]
    backend.add_tokens([AddedToken(text, normalized=True, special=False) for text in whole])
    return backend


def _merges(pieces: list[Piece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every split of a word into two others, the words of the highest scores first."""
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
    """The pieces, and (name, what it must be, what it is) of each setting that changes ids."""
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


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbers and values of a protobuf message's fields."""
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
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
