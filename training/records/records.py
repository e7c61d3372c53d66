"""Records that depend on one another: a task to compare methods of KV reuse with graded losses.

A segment is a record of eight tokens, `name like a0 a1 a2 a3 name stop`: its name, the name of an
earlier record (its antecedent), four attributes, its name again, an end. Two of the four
attributes are `ditto`: they have the value of the antecedent, which may be a ditto, too, up to
MAX_LINKS times. The first record has neither an antecedent nor a ditto. So every segment depends
on its antecedent, a quarter of its tokens mean nothing without it, and the others can be read
directly. A prompt is `<bos> records <ask k> name`, and its next token is that record's attribute
k.

A question is about a ditto with probability ASKED. This is the share of questions that full reuse
cannot answer, except for what the question itself follows.

All arrays are int64; B prompts, S records of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SEGMENTS = (4, 30)  # fewest and most
ATTRIBUTES, VALUES, DITTOS, MAX_LINKS = 4, 16, 2, 3
NAMES = 32
LIKE = NAMES  # tokens 0 .. NAMES - 1 are names; LIKE + name points to one
VALUE = LIKE + NAMES  # first token of the values of attribute 0, then of 1, ...
DITTO = VALUE + ATTRIBUTES * VALUES  # of attribute 0, ...
ASK = DITTO + ATTRIBUTES
STOP = ASK + ATTRIBUTES
NOBODY, BOS = STOP + 1, STOP + 2  # NOBODY: the first record has no antecedent
VOCABULARY = BOS + 1
TOKENS = 4 + ATTRIBUTES  # of a record
FIRST = 2  # attribute 0's place in a record
ASKED = 0.25  # share of questions about a ditto


@dataclass(frozen=True, eq=False)
class Records:
    """names, like: [B, S], like -1 for the first record. said: tokens of attributes, [B, S, 4].

    values: their values, [B, S, 4]. links: number of dittos from each attribute to its stated
    value.
    """

    names: np.ndarray
    like: np.ndarray
    said: np.ndarray
    values: np.ndarray
    links: np.ndarray

    @property
    def memory(self) -> np.ndarray:
        """Tokens of <bos> and the records, [B, 1 + 8 S]."""
        size = len(self.names)
        pointer = np.where(self.like < 0, NOBODY, LIKE + _names_of(self.names, self.like))
        ends = np.full_like(self.names, STOP)
        head = np.stack([self.names, pointer], -1)
        tail = np.stack([self.names, ends], -1)
        tokens = np.concatenate([head, self.said, tail], -1).reshape(size, -1)
        return np.concatenate([np.full((size, 1), BOS), tokens], 1)


def draw_records(rng: np.random.Generator, problems: int, segments: int) -> Records:
    """Draw records. Raises ValueError for an invalid number of segments."""
    least, most = SEGMENTS
    if not least <= segments <= most:
        raise ValueError(f'{segments} records: a prompt has {least} to {most}')
    size = (problems, segments)
    names = rng.permuted(np.tile(np.arange(NAMES), (problems, 1)), axis=1)[:, :segments]
    like = (rng.random(size) * np.arange(segments)).astype(np.int64)
    like[:, 0] = -1
    wish = rng.random((*size, ATTRIBUTES)).argsort(-1) < DITTOS
    own = VALUE + VALUES * np.arange(ATTRIBUTES) + rng.integers(0, VALUES, (*size, ATTRIBUTES))
    values, links = own.copy(), np.zeros_like(own)
    rows = np.arange(problems)
    for s in range(1, segments):
        before = links[rows, like[:, s]]
        ditto = wish[:, s] & (before < MAX_LINKS)
        links[:, s] = np.where(ditto, before + 1, 0)
        values[:, s] = np.where(ditto, values[rows, like[:, s]], own[:, s])
    said = np.where(links > 0, DITTO + np.arange(ATTRIBUTES), values)
    return Records(names, like, said, values, links)


def draw_questions(
    rng: np.random.Generator, records: Records, questions: int, links: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Draw an attribute [B], one per prompt, and the distinct records [B, Q] to ask for.

    links: of each question; None: a ditto with probability ASKED, else none. If a prompt has too
    few such records the others follow.
    """
    count, segments = records.names.shape
    luck = rng.random((count, ATTRIBUTES))
    if links is not None:  # prefer an attribute that has such a record
        luck += (records.links == links).any(1)
    attribute = luck.argmax(1)
    there = records.links[np.arange(count), :, attribute]  # [B, S]
    if links is None:
        wanted = (there > 0) == (rng.random((count, 1)) < ASKED)
    else:
        wanted = there == links
    order = (rng.random((count, segments)) - wanted).argsort(1)
    return attribute, order[:, :questions]


def _names_of(names: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.take_along_axis(names, np.maximum(at, 0), axis=1)
