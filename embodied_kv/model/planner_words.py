"""How memory and a question are put into words for the planner.

Knows sentences. Does not know tokens: each of these pieces is tokenised by itself, so that what a
segment is made of does not depend on its neighbours.
"""

from __future__ import annotations

HEAD = 'Memory:'  # after <bos>, before the first segment


def segment_words(text: str) -> str:
    """One segment, as it stands in a prompt."""
    return f'\n{text}'


def question_words(question: str) -> str:
    """The end of a prompt: the answer is what follows."""
    return f'\nQ: {question}\nA:'


def answer_words(answer: str) -> str:
    """What the planner says, before <eos>."""
    return f' {answer}'
