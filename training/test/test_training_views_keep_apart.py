"""Draws do not attend to other draws, segments not to other segments, and none to padding."""

from dataclasses import replace

import pytest
import torch

from embodied_kv.config import TINY
from training.common.views import UNSEEN, dense_attention


@torch.no_grad()
def test_a_draw_does_not_see_another_draw(objective, batch):
    _, prefix, _ = objective.fill(batch)
    x = torch.randn(6, TINY.chunk_size, TINY.padded_action_dim)
    times = torch.rand(6)
    before = objective.velocity(x, times, prefix)
    x[1], times[1] = 3.0, 0.9
    after = objective.velocity(x, times, prefix)
    assert [bool((a == b).all()) for a, b in zip(after, before, strict=True)] == [
        True, False, True, True, True, True,
    ]  # fmt: skip


@torch.no_grad()
def test_a_segment_sees_neither_another_segment_nor_what_follows(objective, batch):
    _, prefix, _ = objective.fill(batch)
    before = objective.packed(batch, prefix)[1]
    packed = batch.packed.clone()
    packed[:, 3] = (packed[:, 3] + 1) % TINY.backbone.vocab_size
    changed = (objective.packed(replace(batch, packed=packed), prefix)[1] != before).any(-1).any(0)
    assert changed[:10].tolist() == [False] * 3 + [True] * 2 + [False] * 5


@torch.no_grad()
def test_padding_changes_no_loss(objective, batch):
    weights = dict.fromkeys(('flow', 'text', 'goal', 'where', 'detect'), 1.0)
    before = objective(batch, weights, torch.Generator().manual_seed(0))
    wider = replace(
        batch,
        prompt=torch.cat([batch.prompt, torch.full((3, 4), 9)], 1),
        packed=torch.cat([batch.packed, torch.full((3, 2), 7)], 1),
        segment=torch.cat([batch.segment, torch.full((3, 2), -1)], 1),
        offset=torch.cat([batch.offset, torch.zeros(3, 2, dtype=torch.int64)], 1),
        answer=torch.cat([batch.answer, torch.full((3, 2), -100)], 1),
    )
    wider.packed[:, 10:] = 5
    after = objective(wider, weights, torch.Generator().manual_seed(0))
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize('kv_heads', [1, 2, 4])
def test_shared_heads_attend_as_repeated_heads(kv_heads):
    q, k, v = (torch.randn(2, n, h, 8) for n, h in ((3, 4), (5, kv_heads), (5, kv_heads)))
    mask = torch.zeros(2, 3, 5).masked_fill(torch.rand(2, 3, 5) < 0.3, UNSEEN)
    k4, v4 = (x.repeat_interleave(4 // kv_heads, 2).transpose(1, 2) for x in (k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k4, v4, attn_mask=mask[:, None]
    ).transpose(1, 2)
    torch.testing.assert_close(dense_attention(q, k, v, mask), expected)


def test_a_line_that_sees_nothing_is_finite_and_so_is_its_gradient():
    q, k, v = (torch.randn(1, 2, 1, 4, requires_grad=True) for _ in range(3))
    out = dense_attention(q, k, v, torch.full((1, 2, 2), UNSEEN))
    out.sum().backward()
    assert all(x.isfinite().all() for x in (out, q.grad, k.grad, v.grad))
