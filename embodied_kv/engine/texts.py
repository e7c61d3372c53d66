"""What streams have said, as text: a token may end in the middle of a letter.

Knows tokens and the tokenizer. Does not know how tokens come about.
"""

from __future__ import annotations

from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.model.tokenizer import StreamDecoder, Tokenizer
from embodied_kv.types import TextDelta


class Texts:
    """The text of every stream that has said something and lives."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._said: dict[int, tuple[StreamDecoder, int]] = {}  # and how many tokens are in it

    def __len__(self) -> int:
        return len(self._said)

    def said(self, stream: int) -> int:
        """Tokens of a stream whose text was handed out."""
        return self._said[stream][1] if stream in self._said else 0

    def resume(self, stream: DecodeStream, said: int) -> None:
        """The text of the stream's first `said` tokens was handed out already."""
        decoder = StreamDecoder(self._tokenizer)
        decoder.feed(stream.tokens[:said])
        self._said[stream.id] = decoder, said

    def delta(self, stream: DecodeStream, reason: str = '') -> TextDelta:
        """What it said since the last one. reason: why it has ended, if it has."""
        decoder, said = self._said.pop(stream.id, None) or (StreamDecoder(self._tokenizer), 0)
        text = decoder.feed(stream.tokens[said:])
        if reason:
            text += decoder.finish()
        else:
            self._said[stream.id] = decoder, len(stream.tokens)
        handle, query = stream.lease.handle, stream.query.text
        frame = handle.sequence, handle.stamp
        return TextDelta(stream.id, *frame, query, text, len(stream.tokens), reason)
