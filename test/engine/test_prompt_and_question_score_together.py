"""By text: the statistics of prompt and question add up to those of all their queries."""

import pytest
import torch

from embodied_kv.compress.base import Statistics
from embodied_kv.engine.compression import PromptScores
from embodied_kv.kernels.score import KvSegment, post_vision_statistics
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.manager import KvManager

N, TEXT, ASKED, HEADS, DIM = 40, 9, 5, 4, 8
QUESTION = 'What is in the gripper?'


def statistics(columns, density, queries):
    return Statistics(columns[:, :, :N], density, kv_heads=HEADS, queries=queries)


@pytest.fixture
def kv():
    one = dict(rows=4, layers=1, kv_heads=1, max_tokens=N, head_dim=DIM, dtype=torch.float32)
    prefixes = Arena(**one)
    return KvManager(prefixes, Arena(**one), CompressedArena(prefixes, rows=1, tokens=0))


def frame(kv, robot):
    facts = dict(robot=robot, sequence=1, stamp=0, deadline=float('inf'))
    return kv.frames.commit(kv.reserve(0.0), N, **facts)


@pytest.fixture
def scored():
    """Return statistics of the prompt's text, of the question, and of both, these in float64."""
    torch.manual_seed(0)
    q = torch.randn(1, TEXT + ASKED, HEADS, DIM)
    k = torch.randn(1, HEADS, N + ASKED, DIM)
    prefix = KvSegment(k[:, :, :N], torch.tensor([N], dtype=torch.int32))
    starts = torch.tensor([0], dtype=torch.int32)
    counts = torch.tensor([ASKED], dtype=torch.int32)
    question = KvSegment(k[:, :, N:], counts, starts)
    prompt = post_vision_statistics(q[:, :TEXT], [prefix])
    asked = post_vision_statistics(q[:, TEXT:], [prefix, question])
    scores = torch.einsum('qhd,hkd->hqk', q[0].double(), k[0].double()) * DIM**-0.5
    hidden = torch.zeros(TEXT + ASKED, N + ASKED, dtype=torch.bool)
    hidden[:TEXT, N:] = True
    hidden[TEXT:, N:] = torch.ones(ASKED, ASKED).triu(1).bool()
    weights = scores.masked_fill(hidden, float('-inf')).softmax(-1)
    dense = (weights >= 0.01 * weights.amax(-1, keepdim=True)) & ~hidden
    both = weights.sum(1)[None], dense.sum((1, 2))[None] / (~hidden).sum()
    return statistics(*prompt, TEXT), statistics(*asked, ASKED), both


def test_the_sum_is_that_of_all_queries(kv, scored):
    prompt, asked, (columns, density) = scored
    kept, handle = PromptScores(kv), frame(kv, 'a')
    kept.attach(handle, prompt)
    prompt.columns.zero_()  # as the next prefill does
    both = kept.added(handle, asked)
    torch.testing.assert_close(both.columns.double(), columns[:, :, :N], atol=1e-5, rtol=0)
    torch.testing.assert_close(both.density.double(), density.double(), atol=1e-6, rtol=0)
    assert both.queries == TEXT + ASKED


def test_another_frame_has_none(kv, scored):
    prompt, asked, _ = scored
    kept, handle = PromptScores(kv), frame(kv, 'a')
    kept.attach(handle, prompt)
    assert kept.added(frame(kv, 'b'), asked) is asked
    kv.frames.retire(handle)
    later = frame(kv, 'c')
    assert later.row == handle.row and kept.added(later, asked) is asked
    kept.attach(handle, prompt)  # its frame is gone
    assert kept.added(later, asked) is asked


def test_a_stream_by_text_keeps_another_choice(make_engine, observe):
    chosen = {}
    for by in ('stream', 'text'):
        engine = make_engine(language_keep_ratio=0.3, compression_queries=by)
        (handle,) = engine.prefill([observe(1)])
        stream = engine.open(handle, QUESTION, max_tokens=4)
        engine.decode()
        keys, _ = engine.kv.compressed.piece(1, stream.lease.row)
        chosen[by] = keys.clone()
        engine.kv.check_integrity()
    assert chosen['stream'].shape != chosen['text'].shape or not torch.equal(*chosen.values())
