"""The words of a data set: its tokenizer, and which object a task is about.

Knows sentences, the prompt and the state's numbers in it. Any other text still has an encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from embodied_kv.model.processing.prompt import STATE_BINS
from embodied_kv.model.tokenizer import Tokenizer
from training.common.words import fit
from training.run.frames import Frames

SUBTASK = 'Subtask:'  # asked behind the prefix; the answer is what is done now


def tokenizer_of(frames: Sequence[Frames], vocab_size: int) -> Tokenizer:
    """For all that is said in the frames. Numbers of the state come first, then frequent words."""
    said = sorted({text for some in frames for text in _sentences(some)})
    return fit(_corpus(said), vocab_size, 'the tokenizer of the data')


def _corpus(said: Sequence[str]) -> Iterator[str]:
    """Each sentence once; numbers and the prompt oftener than any word can be."""
    often = 1 + max(sum(map(len, said)), 1)
    numbers = ' '.join(map(str, range(STATE_BINS)))
    yield from (f'Task:, State: {numbers};\nAction: {SUBTASK}' for _ in range(min(often, 1000)))
    yield from said


def _sentences(frames: Frames) -> Iterator[str]:
    yield from (f'Task: {task}' for task in frames.tasks)
    yield from (f' {text}' for text in (*frames.subtasks, *frames.objects))


def goal_of(task: str, objects: Sequence[str]) -> int | None:
    """Which object a task is about: that named first, or the only one there is; None if none is.

    Names are words of the task, or their plurals, not parts of words: a candle is no can. Of names
    that begin at one place the longest is meant.
    """
    found = {
        n: re.search(rf'(?<!\w){re.escape(name)}s?(?!\w)', task, re.IGNORECASE)
        for n, name in enumerate(objects)
    }
    named = [(there.start(), -len(objects[n]), n) for n, there in found.items() if there]
    if named:
        return min(named)[2]
    return 0 if len(objects) == 1 else None
