"""The planner's tokenizer: bytes, and the words that households are talked about with.

A word is one token, and so are a name ("red cube", "left table") and the number of a task, each
with the space before it: what a thing is called is one symbol to be looked for, as it is to
whoever reads it. Any other text still has an encoding: byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from embodied_kv.model.planner_words import HEAD, answer_words, question_words, segment_words
from embodied_kv.model.tokenizer import Tokenizer, byte_symbols
from embodied_kv.sim.household import (
    CARRIER_NAMES,
    LIDDED_NAMES,
    OBJECT_NAMES,
    ROBOT,
    TABLES,
    TASKS,
    at,
    into,
)
from embodied_kv.sim.household_questions import NEXT, WORDS

SPECIALS = ('<pad>', '<eos>', '<bos>')
NAMES = (*OBJECT_NAMES, *CARRIER_NAMES, *LIDDED_NAMES, *TABLES)


def corpus() -> Iterator[str]:
    """Pieces of prompts in which every word, name and number of a household occurs."""
    yield HEAD
    x, y = OBJECT_NAMES[0], LIDDED_NAMES[0]
    for name in NAMES:
        yield segment_words(f'{name}: open, {at(name)}')
        yield segment_words(f'{name}: closed, {at(name)}')
        yield answer_words(into(name))
    yield segment_words(f'{ROBOT}: holds nothing')
    yield segment_words(f'{x}: {at(ROBOT)}')
    for number in range(1, TASKS + 1):
        yield segment_words(f'task {number}: put the {x} {into(y)}')
        yield segment_words(f'last {into(y)}: task {number}')
    for words in WORDS.values():
        yield question_words(words.format(x=x, y=y, into=into(y)))
    for words in (*NEXT, 'yes', 'no', 'nothing'):
        yield answer_words(words.format(x=x, into=into(y)))


def planner_tokenizer(vocab_size: int) -> Tokenizer:
    """Raises ValueError if a vocabulary of that size does not hold every word of the corpus.

    The fewest tokens win (a unigram model whose tokens all cost the same).
    """
    pieces = Regex(rf' ?\b(?:{"|".join(NAMES)})\b| ?\w+|\s|[^\w\s]+')
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, 'isolated'),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = {word for text in corpus() for word, _ in split.pre_tokenize_str(text)}
    single = sorted(byte_symbols())
    tokens = [*SPECIALS, *single, *sorted(words - {*single})]
    if len(tokens) > vocab_size:
        raise ValueError(f'{vocab_size} tokens do not hold bytes and words, {len(tokens)} would')
    backend = Backend(models.Unigram([(token, -1.0) for token in tokens]))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, 'the tokenizer of households')
