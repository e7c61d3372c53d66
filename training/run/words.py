"""The words of a data set: its tokenizer, and the object that a task is about.

The vocabulary has the sentences of the data, and the prompt with its state numbers. Any other text
can still be encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from embodied_kv.model.processing.prompt import STATE_BINS
from embodied_kv.model.tokenizer import Tokenizer
from training.common.words import fit
from training.run.frames import Frames

SUBTASK = 'Subtask:'  # question behind the prefix; the answer is the current subtask


def tokenizer_of(frames: Sequence[Frames], vocab_size: int) -> Tokenizer:
    """Train a tokenizer on all texts of frames; state numbers come first, then frequent words."""
    said = sorted({text for some in frames for text in _sentences(some)})
    return fit(_corpus(said), vocab_size, 'the tokenizer of the data')


def _corpus(said: Sequence[str]) -> Iterator[str]:
    """Yield each sentence once, and numbers and the prompt more often.

    They are more frequent than any word can be, up to 1000 times.
    """
    often = 1 + max(sum(map(len, said)), 1)
    numbers = ' '.join(map(str, range(STATE_BINS)))
    yield from (f'Task:, State: {numbers};\nAction: {SUBTASK}' for _ in range(min(often, 1000)))
    yield from said


def _sentences(frames: Frames) -> Iterator[str]:
    yield from (f'Task: {task}' for task in frames.tasks)
    yield from (f' {text}' for text in (*frames.subtasks, *frames.objects))


def goal_of(task: str, objects: Sequence[str]) -> int | None:
    """Return the object that a task is about: the one named first, or the only one; else None.

    Names match whole words of the task, or their plurals, not parts of words: `can` does not match
    `candle`. Of names that begin at the same place the longest counts.
    """
    found = {
        n: re.search(rf'(?<!\w){re.escape(name)}s?(?!\w)', task, re.IGNORECASE)
        for n, name in enumerate(objects)
    }
    named = [(there.start(), -len(objects[n]), n) for n, there in found.items() if there]
    if named:
        return min(named)[2]
    return 0 if len(objects) == 1 else None
