"""One kernel on a card reads everything that a view attends to, and equals its twin on a CPU.

The slots read a whole or a compressed prefix, then a suffix or a tail; the kernel runs in Triton's
interpreter.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from embodied_kv.kernels import attention
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.views import SuffixRead, TailAppend

LAYERS, ROWS, HEADS = 2, 3, 4
SIZE = dict(layers=LAYERS, kv_heads=1, head_dim=16, dtype=torch.float32)
BOUND = [2, -1, 0], [-1, 0, -1]  # rows, and compressed rows, of three of the four slots
BUDGETS = 7, 4  # tokens of the compressed row, by layer


def make_arenas():
    """Return prefixes, tails and compressed copies of prefixes, filled with random numbers."""
    arenas = [Arena(rows=ROWS, max_tokens=most, **SIZE) for most in (20, 12)]
    flats = CompressedArena(arenas[0], 2, 64)
    generator = torch.Generator().manual_seed(0)
    for arena in (*arenas, flats):
        arena.k.normal_(generator=generator)
        arena.v.normal_(generator=generator)
    arenas[0].set_length([0, 2], [5, 18])
    arenas[1].set_length([0, 1, 2], [4, 9, 5])
    assert flats.allocate(BUDGETS, 18) == 0
    return *arenas, flats


def attended(view, tokens):
    """Return the attention of the slots that are not padding, in all layers."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(LAYERS, 4, tokens, HEADS, 16, generator=generator)
    k, v = torch.randn(2, LAYERS, 4, tokens, 1, 16, generator=generator)
    return torch.stack(
        [view.attend(layer, q[layer], k[layer], v[layer])[:3] for layer in range(LAYERS)]
    )


def all_attended():
    prefixes, tails, flats = make_arenas()
    suffix = SuffixRead(prefixes, 4, 5, flats).bind(*BOUND)
    tail = TailAppend(prefixes, tails, 4, 2, flats).bind(BOUND[0], [1, 0, 2], 2, BOUND[1])
    whole = TailAppend(prefixes, tails, 4, 1).bind([2, 0], [1, 0], 1)
    return [attended(suffix, 5), attended(tail, 2), attended(whole, 1)[:, :2]]


INTERPRETED = """
import sys
sys.path[:0] = {path!r}
import torch
from embodied_kv.kernels import attention
from embodied_kv.kernels.triton_segments import segments_attention
from test_a_view_reads_all_segments_by_one_kernel import LAYERS, all_attended
expected, calls = all_attended(), []
def counted(*given):
    calls.append(len(given[1]))
    return segments_attention(*given)
attention.torch_segments_attention = counted
attention.torch_row_attention = None  # nothing else attends
for ours, twins in zip(all_attended(), expected):
    torch.testing.assert_close(ours, twins, atol=2e-6, rtol=0)
assert calls == [3] * LAYERS + [3] * LAYERS + [2] * LAYERS, calls
print('equal')
"""


def test_a_kernel_equals_its_twin_in_the_interpreter(monkeypatch):
    pytest.importorskip('triton', reason='the Triton kernel needs the triton package')
    monkeypatch.setenv('TRITON_INTERPRET', '1')  # read when triton is imported
    code = INTERPRETED.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[2])])
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == 'equal', run.stderr


def test_a_kind_that_no_slot_reads_costs_nothing_on_a_cpu(monkeypatch):
    prefixes, _, flats = make_arenas()
    reads = []
    real = attention.torch_row_attention

    def counted(q, k, v, batch, layer):
        reads.append(batch)
        return real(q, k, v, batch, layer)

    monkeypatch.setattr(attention, 'torch_row_attention', counted)
    view = SuffixRead(prefixes, 1, 5, flats)
    q, k, v = torch.randn(1, 5, HEADS, 16), *torch.randn(2, 1, 5, 1, 16)
    for rows, compressed, calls in (([0], [-1], 2), ([-1], [0], 2)):
        view.bind(rows, compressed).attend(0, q, k, v)
        assert len(reads) == calls
        reads.clear()
