"""Segments and questions as the planner's tokens.

Knows words and tokens. Does not know which segments are in view, or why. Each part is tokenised by
itself, so a segment has the same tokens in a unit and in any prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.segment import Unit
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.model.planner_words import HEAD, question_words, segment_words
from embodied_kv.model.tokenizer import Tokenizer


class PlannerPrompts:
    """head: the tokens that every prompt begins with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.head = tokenizer.encode(HEAD, bos=True)

    def segment(self, text: str) -> list[int]:
        return self._tokenizer.encode(segment_words(text))

    def count(self, text: str) -> int:
        """Tokens of a segment of this text."""
        return len(self.segment(text))

    def question(self, question: str) -> list[int]:
        """Raises ValueError where nothing is asked."""
        if not question.strip():
            raise ValueError('there is no question: say what is to be planned')
        return self._tokenizer.encode(question_words(question.strip()))

    def unit(self, unit: Unit) -> list[list[int]]:
        """Of each of its segments, in order."""
        return [self.segment(segment.text) for segment in unit.segments]

    def prompt(
        self,
        units: Iterable[Unit],
        question: list[int],
        kept: Mapping[str, Sequence[int]] | None = None,
    ) -> Prompt:
        """Units in order, then the question.

        kept: by key, of units whose KV may be read, how many tokens of each segment it has.
        """
        pieces = []
        for unit in units:
            offset = at = 0
            counts = (kept or {}).get(unit.key)
            for i, (id, tokens) in enumerate(zip(unit.ids, self.unit(unit), strict=True)):
                if counts is None:
                    pieces.append(Piece(id, tokens))
                else:
                    stored = slice(at, at := at + counts[i])
                    pieces.append(Piece(id, tokens, unit.key, offset, stored))
                offset += len(tokens)
        return Prompt(self.head, tuple(pieces), question)


def memory_fingerprint(planner: LoadedPlanner, prompts: PlannerPrompts) -> str:
    """Of all that KV depends on beside a segment: the planner, and how segments are put to it."""
    words = f'{planner.fingerprint} {prompts.segment("A mug is in Place 1.")}'
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()
