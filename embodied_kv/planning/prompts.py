"""Tokens of the planner's prompts.

Each part is tokenised separately, so a segment has the same tokens in a unit and in any prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.segment import Unit
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.model.planner_prompts import HEAD, question_words, segment_words
from embodied_kv.model.tokenizer import Tokenizer


class PlannerPrompts:
    """The tokens of segments, questions and prompts; all prompts begin with `head`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.head = tokenizer.encode(HEAD, bos=True)

    def segment(self, text: str) -> list[int]:
        return self._tokenizer.encode(segment_words(text))

    def count(self, text: str) -> int:
        """Return the number of tokens of a segment with this text."""
        return len(self.segment(text))

    def question(self, question: str) -> list[int]:
        """Return the tokens of a question. Raise ValueError if it is empty."""
        if not question.strip():
            raise ValueError('question must not be empty')
        return self._tokenizer.encode(question_words(question.strip()))

    def unit(self, unit: Unit) -> list[list[int]]:
        """Return the tokens of each segment of a unit, in order."""
        return [self.segment(segment.text) for segment in unit.segments]

    def prompt(
        self,
        units: Iterable[Unit],
        question: list[int],
        kept: Mapping[str, Sequence[int]] | None = None,
    ) -> Prompt:
        """Return the prompt of the units and the question.

        `kept` has, by the key of each unit whose KV may be loaded, the tokens of each segment in
        that KV.
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
    """Return the fingerprint of what KV depends on besides the text: planner and prompt format."""
    words = f'{planner.fingerprint} {prompts.segment("A mug is in Place 1.")}'
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()
