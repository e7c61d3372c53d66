"""In a merge of bfloat16 outputs the share of a segment is not rounded to bfloat16."""

import pytest
import torch

from embodied_kv.kernels.attention import merge


@pytest.mark.parametrize('share', [0.5, 0.002, 0.001, 1e-4, 1e-6])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
def test_a_tail_of_little_weight_counts_for_that_weight(share, dtype):
    shape = 1, 1, 1
    prefix = torch.zeros(*shape, 4, dtype=dtype), torch.zeros(shape)
    log_odds = torch.tensor(share).double().logit().float()
    tail = torch.ones(*shape, 4, dtype=dtype), log_odds.expand(shape)
    expected = torch.full((*shape, 4), share, dtype=torch.float64)
    either = merge(prefix, tail), merge(tail, prefix)
    for merged in either:
        assert merged.dtype == dtype
        torch.testing.assert_close(merged.double(), expected, rtol=0.01, atol=1e-7)


def test_bfloat16_equals_float64_to_a_rounding():
    generator = torch.Generator().manual_seed(0)
    out1, out2 = torch.randn(2, 3, 5, 4, 16, generator=generator).bfloat16()
    lse1, lse2 = 4 * torch.randn(2, 3, 5, 4, generator=generator)
    share = torch.sigmoid((lse1 - lse2).double()).unsqueeze(-1)
    expected = out1.double() * share + out2.double() * (1 - share)
    merged = merge((out1, lse1), (out2, lse2)).double()
    torch.testing.assert_close(merged, expected, rtol=2**-8, atol=1e-6)
