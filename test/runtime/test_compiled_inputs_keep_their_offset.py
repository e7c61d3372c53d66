"""The inputs of a compile job are as far from an aligned address as those of the engine.

Code for a GPU copies a misaligned input that it assumes to be aligned, and writes to the copy.
"""

import torch

from embodied_kv.runtime.compiled import Layout


def test_an_empty_input_has_its_offset():
    layout = Layout((2, 3), (4, 1), torch.int32, torch.device('cpu'), 1)
    made = layout.empty()
    assert (made.shape, made.stride(), made.storage_offset()) == ((2, 3), (4, 1), 1)
    made.fill_(1)
    assert made.untyped_storage().nbytes() == 4 * (1 + 4 + 2 + 1)


def test_an_aligned_input_has_none():
    layout = Layout((2,), (1,), torch.int32, torch.device('cpu'))
    assert layout.empty().storage_offset() == 0
