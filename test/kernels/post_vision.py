"""Random cases of post-vision statistics, and a float64 reference that computes every entry."""

from types import SimpleNamespace

import torch

P = 0.01


def make_case(slots, tau, heads, kv_heads, n, dim=16, causal=False, dtype=torch.float32, seed=0):
    """Return a segment in a larger arena (strided views), and queries; some are padding."""
    g = torch.Generator().manual_seed(seed)
    arena = torch.randn(slots, n + 3, kv_heads, 2 * dim, generator=g).to(dtype)
    projection = 3 * torch.randn(slots, tau + 2, heads, dim, generator=g)

    def count(low, high):
        return torch.randint(low, high + 1, (slots,), generator=g, dtype=torch.int32)

    lengths = count(0, n)
    for row, length in zip(arena, lengths, strict=True):
        row[length:] = float('nan')  # keys beyond the valid ones must not affect a result
    return SimpleNamespace(
        q=projection.to(dtype)[:, 2:],
        k=arena[:, :n, :, dim:].transpose(1, 2),
        lengths=lengths,
        starts=count(-2, n) if causal else None,
        queries=count(0, tau),
    )


def visible(case):
    """Return which key each query sees, bool [slots, tau, N]."""
    tau, n = case.q.shape[1], case.k.shape[2]
    limit = case.lengths[:, None].repeat(1, tau)
    if case.starts is not None:
        limit = torch.minimum(limit, case.starts[:, None] + torch.arange(tau) + 1)
    return torch.arange(n) < limit[:, :, None]


def scores(case):
    """Return scores, float64 [slots, tau, heads, N], -inf where hidden."""
    dim, group = case.q.shape[3], case.q.shape[2] // case.k.shape[1]
    k = case.k.double().nan_to_num().repeat_interleave(group, 1)
    product = torch.einsum('sthd,shnd->sthn', case.q.double(), k) * dim**-0.5
    return product.masked_fill(~visible(case)[:, :, None], float('-inf'))


def rows(score):
    """Return the maximum and the sum of exp(score - maximum); -inf and 0 if nothing is visible."""
    top = score.amax(-1)
    return top, (score - top.nan_to_num(neginf=0)[..., None]).exp().sum(-1)


def check(case, row_statistics, column_statistics, reduce_counts):
    """Compare all three kernels with float64; counts may differ for entries at the threshold."""
    top, total = row_statistics(case.q, case.k, case.lengths, case.starts)
    score = scores(case)
    expected_top, expected_total = rows(score)
    torch.testing.assert_close(top.double(), expected_top, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(total.double(), expected_total, atol=1e-5, rtol=1e-5)
    columns, partial = column_statistics(
        case.q, case.k, case.lengths, top, total, P, case.starts, case.queries
    )
    tau = case.q.shape[1]
    seen = (
        visible(case)[:, :, None] & (torch.arange(tau) < case.queries[:, None])[:, :, None, None]
    )
    weight = (score - expected_top.nan_to_num(neginf=0)[..., None]).exp()
    attention = torch.where(seen, weight / expected_total.clamp(min=1)[..., None], 0)
    torch.testing.assert_close(columns.double(), attention.sum(1), atol=1e-5, rtol=1e-5)
    counts = reduce_counts(partial)
    assert partial.dtype == counts.dtype == torch.int32
    fewest = (seen & (weight < P * (1 - 1e-4))).sum((1, 3))
    most = (seen & (weight < P * (1 + 1e-4))).sum((1, 3))
    assert ((fewest <= counts) & (counts <= most)).all()
