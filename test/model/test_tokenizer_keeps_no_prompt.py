"""The tokenizer caches no prompt, because each contains another robot state."""

import os
from pathlib import Path

from embodied_kv.model.tokenizer import Tokenizer

PROMPTS = 3000


def resident():
    """Return the resident memory of the process, bytes."""
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return pages * os.sysconf('SC_PAGE_SIZE')


def test_prompts_take_no_memory():
    tokenizer = Tokenizer.bytes()  # as in Gemma, a prompt is not split into words
    state = ' '.join(map(str, range(40)))
    for number in range(100):
        tokenizer.encode(f'State: {-number} {state}')
    before = resident()
    for number in range(PROMPTS):
        tokenizer.encode(f'State: {number} {state}')
    assert resident() - before < PROMPTS * 500  # a cached prompt takes thousands
