"""The planner's tokenizer: bytes, and the words of households and of missions.

A word is one token, and so are a name ("red cube", "left table") and the number of a task, each
with the space before it, so that the name of a thing is one symbol to look up. Any other text is
encoded byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from embodied_kv.demo.sim.scene import COLOURS, MOVABLE, RECEPTACLES
from embodied_kv.demo.sim.table_memory import FLOOR, TABLE
from embodied_kv.demo.sim.tasks import PHRASES, SIDES
from embodied_kv.model.planner_prompts import HEAD, answer_words, question_words, segment_words
from embodied_kv.model.tokenizer import Tokenizer, byte_symbols
from training.planner.household import (
    CARRIER_NAMES,
    LIDDED_NAMES,
    OBJECT_NAMES,
    ROBOT,
    TABLES,
    TASKS,
    at,
    into,
)
from training.planner.household_questions import NEXT, WORDS
from training.planner.mission_phrases import every_phrase
from training.planner.simulated_table import PLACE_NAMES

SPECIALS = ('<pad>', '<eos>', '<bos>')
NAMES = (*OBJECT_NAMES, *CARRIER_NAMES, *LIDDED_NAMES, *TABLES)


def corpus() -> Iterator[str]:
    """Yield pieces of prompts in which every word, name and number of a household occurs."""
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


def mission_corpus() -> Iterator[str]:
    """Yield pieces of prompts in which every word of missions on a table occurs."""
    x, y = OBJECT_NAMES[0], PLACE_NAMES[0]
    fill = {'x': x, 'y': y, 'q': 'where', 'at': f'in the {y}', 'into': f'into the {y}'}
    fill |= {'off': f'off the {y}', 'on': 'onto', 'held': x}
    phrases = [*every_phrase(), *(words for forms in PHRASES.values() for words in forms)]
    for words, side, word in product(phrases, SIDES, (*COLOURS, *MOVABLE)):
        yield question_words(f'mission: {words.format(side=side, w=word, **fill)}; part 1')
        yield answer_words(words.format(side=side, w=word, **fill))
    for word in (*RECEPTACLES, *MOVABLE, *COLOURS, TABLE):
        yield answer_words(f'I know no {word}, but more than one {word}, and nothing {word}')
    yield question_words('last moved 12, 10; done: say; failed: say')
    yield segment_words(f'{y}: holds the {x} and the {x}')
    yield segment_words(f'task 1: put the {x} out of the {y}, from the {TABLE}, not finished')
    yield segment_words(f'last move of the {x}: task 1, on the {FLOOR}, next to the {x}')
    for words in (
        'over',
        'impossible: the bin is full, I cannot move it, I do not know where it was',
        'impossible: I moved nothing, the bin is to stay, there is nothing to put it next to',
        'impossible: I do not understand',
        'give up: pick up the bin',
        'say: I hold nothing, it was held by the robot last',
    ):
        yield answer_words(words)


def whole_corpus() -> Iterator[str]:
    """Yield all texts that a planner of households and missions reads and writes."""
    yield from corpus()
    yield from mission_corpus()


def planner_tokenizer(vocab_size: int, texts: Iterable[str] | None = None) -> Tokenizer:
    """Return a tokenizer. texts: their words are tokens; None for those of households.

    It uses the fewest tokens (a unigram model whose tokens all cost the same). Raises ValueError
    if a vocabulary of that size does not hold every word.
    """
    pieces = Regex(rf' ?\b(?:{"|".join(NAMES)})\b| ?\w+|\s|[^\w\s]+')
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, 'isolated'),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = {word for text in texts or corpus() for word, _ in split.pre_tokenize_str(text)}
    single = sorted(byte_symbols())
    tokens = [*SPECIALS, *single, *sorted(words - {*single})]
    if len(tokens) > vocab_size:
        raise ValueError(f'{vocab_size} tokens do not hold bytes and words, {len(tokens)} would')
    backend = Backend(models.Unigram([(token, -1.0) for token in tokens]))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, "the planner's tokenizer")
