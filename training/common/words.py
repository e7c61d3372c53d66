"""The policy's own tokenizer: a small byte-level BPE over its prompts, questions and answers.

The vocabulary has the sentences of `sim.language` and `sim.tasks`, and the prompt's numbers. Any
other text is encoded byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from embodied_kv.demo.sim import language
from embodied_kv.demo.sim.scene import COLOURS, MOVABLE, RECEPTACLES
from embodied_kv.demo.sim.tasks import MEMORY_PHRASES, PHRASES, SIDES
from embodied_kv.model.processing.prompt import STATE_BINS
from embodied_kv.model.tokenizer import Tokenizer, byte_symbols


def corpus(memory: bool = False) -> Iterator[str]:
    """Yield sentences in which every word and number of the policy's world occurs.

    memory: also those of tasks about the past.
    """
    fill = {'x': 'red cube', 'y': 'red bin', 'held': 'red cube', 'on': 'on', 'off': 'off'}
    fill['side'] = 'left'
    templates = [
        *(phrase for phrases in PHRASES.values() for phrase in phrases),
        *language.SUBTASKS.values(),
        *language.DOING.values(),
        *language.PUT_BESIDE.values(),
        *language.PUTTING_BESIDE.values(),
        *language.PURPOSE.values(),
        *language.RESULT.values(),
    ]
    if memory:
        templates += [
            *(phrase for phrases in MEMORY_PHRASES.values() for phrase in phrases),
            *language.PUT_BACK.values(),
            *language.PUTTING_BACK.values(),
            *language.MEMORY_PURPOSE.values(),
            *language.MEMORY_RESULT.values(),
            *(words.replace('{x}', 'cover over the {x}') for words in language.SUBTASKS.values()),
        ]
    for template in templates:
        yield f'Task: {template.format(**fill)}, State: 0;\nAction: '
        yield f' {template.format(**fill)}'
    for colour, shape in product(COLOURS, (*MOVABLE, *RECEPTACLES)):
        yield f' the {colour} {shape}? {colour} {shape}.'
    words = (*SIDES, 'into', 'onto', 'in', 'off', 'out of', 'yes', 'no', 'nothing')
    yield from (f' {word}' for word in words)
    yield from (f' {number}' for number in range(STATE_BINS))
    yield from (language.SUBTASK, language.NARRATE, language.DONE, language.HELD, language.COUNT)
    yield 'What colour is the cube? What shape is the red thing? Do you see the red cube?'
    yield 'Is the red cube left of the red bin?'
    yield from ('What is in the red bin?', 'Where is the red cube?')
    yield from (' the red cube and the red cube', ' on the table', ' held by the robot')
    yield ' on the floor'


def train_tokenizer(vocab_size: int, memory: bool = False) -> Tokenizer:
    """Train the tokenizer of the tabletop. memory: as of `corpus`.

    Raises ValueError if a vocabulary of that size does not hold every word of the corpus.
    """
    tokenizer = fit(corpus(memory), vocab_size, 'the tabletop tokenizer')
    split = tokenizer.backend.pre_tokenizer.pre_tokenize_str
    for sentence in corpus(memory):
        if len(tokenizer.encode(sentence)) > len(split(sentence)):
            raise ValueError(f'{vocab_size} tokens do not hold the words of {sentence!r}')
    return tokenizer


def fit(sentences: Iterable[str], vocab_size: int, name: str) -> Tokenizer:
    """Train a byte-level BPE of at most `vocab_size` tokens, the most frequent pieces."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=['<pad>', '<eos>', '<bos>'],
        initial_alphabet=sorted(byte_symbols()),
        show_progress=False,
    )
    backend.train_from_iterator(sentences, trainer)
    return Tokenizer(backend, name)
