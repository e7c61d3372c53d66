"""Conversion of text to token ids and back.

A tokenizer is read from a `tokenizer.json` or a SentencePiece `.model`. A byte-level tokenizer is
built in for weights without one. A token is a string of bytes.
"""

from __future__ import annotations

import builtins
import codecs
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from embodied_kv.model.files import refuse_placeholder
from embodied_kv.model.sentencepiece import SPACE, read_backend
from embodied_kv.text import is_text, shown

# Spellings of Gemma, of SentencePiece's default, and of SmolVLM.
SPECIALS = {
    'pad': ('<pad>', '<|im_end|>'),
    'eos': ('<eos>', '</s>', '<end_of_utterance>'),
    'bos': ('<bos>', '<s>', '<|im_start|>'),
}
ABSENT = -1  # id of a special token that the model lacks
KNOWN_DECODERS = {'ByteLevel', 'ByteFallback', 'Metaspace'}
BYTE_FALLBACK = re.compile(r'<0x([0-9A-F]{2})>')


@lru_cache(maxsize=1)
def byte_symbols() -> tuple[str, ...]:
    """Return GPT-2's printable symbol of each byte 0..255, used in byte-level vocabularies."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(rest)) for byte in range(256))


class Tokenizer:
    """A `tokenizers.Tokenizer` and its special ids: `pad`, `eos`, `bos`, `vocab_size`.

    specials: the special token of each name, of which only eos is required; a missing one has the
    id ABSENT. None: the known spellings, of which all three are required. Raises ValueError for a
    missing special token or an unknown decoder.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        limit: int | None = None,
        specials: Mapping[str, str | None] | None = None,
    ) -> None:
        self.backend = backend
        backend.encode_special_tokens = True  # user text contains no special token
        _disable_cache(backend)
        words = backend.get_vocab_size(with_added_tokens=False)
        if limit is not None and words > limit:
            raise ValueError(f'{name} has {words} tokens, the model embeds {limit}')
        self.vocab_size = min(backend.get_vocab_size(), limit or backend.get_vocab_size())
        ids = {}
        for special, spellings in SPECIALS.items():
            if specials is not None:
                spellings = (given,) if (given := specials.get(special)) else ()
            found = [backend.token_to_id(spelling) for spelling in spellings]
            ids[special] = next((token for token in found if token is not None), ABSENT)
            if ids[special] == ABSENT and (specials is None or special == 'eos'):
                known = ' or '.join(spellings) or special
                raise ValueError(f'{name} has no {known} token')
        self.pad, self.eos, self.bos = ids['pad'], ids['eos'], ids['bos']
        decoder = json.dumps(json.loads(backend.to_str())['decoder'])
        kinds = re.findall(r'"type": "(\w+)"', decoder)
        if not KNOWN_DECODERS & set(kinds):
            raise ValueError(
                f'{name} has the decoder {kinds}, expected one of {sorted(KNOWN_DECODERS)}'
            )
        byte_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        self._byte_of = byte_of if 'ByteLevel' in kinds else None
        self._added = backend.get_added_tokens_decoder()

    @classmethod
    def bytes(cls) -> Tokenizer:
        """Return the byte tokenizer: pad 0, eos 1, bos 2 as in Gemma, and 256 ids of bytes."""
        symbols = ['<pad>', '<eos>', '<bos>', *byte_symbols()]
        backend = Backend(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        return cls(backend, 'the byte tokenizer')

    @classmethod
    def load(
        cls,
        path: str | Path,
        limit: int | None = None,
        specials: Mapping[str, str | None] | None = None,
    ) -> Tokenizer:
        """Return the tokenizer of a tokenizer.json, a folder with one, or a `.model` file.

        limit: number of ids that the model embeds; added tokens beyond it (PaliGemma's `<image>`)
        are never encoded. Raises ValueError where the file cannot be used.
        """
        path = Path(path)
        path = path / 'tokenizer.json' if path.is_dir() else path
        if not path.is_file():
            raise ValueError(f'{path} does not exist; copy a {path.name} there')
        refuse_placeholder(path)
        if path.suffix == '.model':
            return cls(read_backend(path), str(path), limit)
        try:
            backend = Backend.from_str(path.read_text(encoding='utf-8-sig'))
        except Exception as error:  # the Rust parser raises nothing more specific
            raise ValueError(f'{path} is not a tokenizer.json: {error}') from error
        return cls(backend, str(path), limit, specials)

    @property
    def frame(self) -> list[int]:
        """The ids that the file adds to every text, such as a BOS before it."""
        return self.backend.encode('', add_special_tokens=True).ids

    def save(self, path: str | Path) -> None:
        """Write the tokenizer.json."""
        Path(path).write_text(self.backend.to_str(), encoding='utf-8')

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Return the ids of the text, with BOS before it if requested and the model has one.

        The name of a special token in the text remains text.

        Raises:
            ValueError: The text is no str, or UTF-8 cannot encode it.
        """
        if not is_text(text):
            raise ValueError(f'text must be a str that UTF-8 can encode (got {shown(repr(text))})')
        ids = self.backend.encode(text, add_special_tokens=False).ids
        # A vocabulary with the name as an ordinary word would still match it.
        never = self.pad, self.eos, self.bos
        known = (token for token in ids if token < self.vocab_size and token not in never)
        return [self.bos] * (bos and self.bos != ABSENT) + [*known]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids, without special ids and ids beyond the vocabulary.

        Bytes that are not UTF-8 become U+FFFD.
        """
        return b''.join(map(self.token_bytes, ids)).decode('utf-8', 'replace')

    def token_bytes(self, token: int) -> builtins.bytes:
        """Return the bytes of one token."""
        if not 0 <= token < self.vocab_size or token in (self.pad, self.eos, self.bos):
            return b''
        if token in self._added:
            added = self._added[token]
            return b'' if added.special else added.content.replace(SPACE, ' ').encode()
        symbol = self.backend.id_to_token(token)
        if symbol is None:
            return b''
        if self._byte_of is not None:
            return bytes(self._byte_of[character] for character in symbol)
        if fallback := BYTE_FALLBACK.fullmatch(symbol):
            return bytes.fromhex(fallback[1])
        return symbol.replace(SPACE, ' ').encode()


def _disable_cache(backend: Backend) -> None:
    """Disable the cache of the first ten thousand words.

    Gemma does not split a prompt, so each prompt with its state is one word of some thousand
    bytes, which never occurs again.
    """
    if resize := getattr(backend.model, '_resize_cache', None):  # some models have no cache
        resize(0)


class StreamDecoder:
    """The text of a growing sequence of ids, in pieces of whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder('utf-8')('replace')

    def feed(self, ids: Iterable[int]) -> str:
        """Return the text that these ids complete; bytes of an incomplete character are kept."""
        return self._utf8.decode(b''.join(map(self._tokenizer.token_bytes, ids)))

    def finish(self) -> str:
        """Return an incomplete character as U+FFFD; all pieces add up to `Tokenizer.decode`."""
        return self._utf8.decode(b'', final=True)
