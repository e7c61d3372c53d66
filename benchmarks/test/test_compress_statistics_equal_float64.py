"""Statistics by any queries of prefix and question equal those of the whole attention matrix."""

import pytest
import torch

from benchmarks.compress.scores import RecordedTokens, Scorer, attention

LAYERS, HEADS, KV_HEADS, DIM, N, T = 2, 4, 2, 8, 23, 7
WHOLE = N + T


@pytest.fixture(scope='module')
def run():
    """Return random queries and keys of a prefix and a question for each layer."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count):
        return RecordedTokens(
            [3 * torch.randn(count, HEADS, DIM, generator=generator) for _ in range(LAYERS)],
            [torch.randn(KV_HEADS, count, DIM, generator=generator) for _ in range(LAYERS)],
        )

    return tokens(N), tokens(T)


def matrix(prefix, question, layer):
    """Return attention of all tokens to all, float64 [heads, N + T, N + T], and its mask."""
    q = torch.cat([prefix.queries[layer], question.queries[layer]]).double()
    k = torch.cat([prefix.keys[layer], question.keys[layer]], 1).double()
    scores = q.transpose(0, 1) @ k.repeat_interleave(HEADS // KV_HEADS, 0).mT / DIM**0.5
    position = torch.arange(WHOLE)
    visible = position <= position[:, None].clamp(min=N - 1)  # prefix whole, question causal
    return scores.masked_fill(~visible, float('-inf')).softmax(-1), visible


@pytest.mark.parametrize('asked', [range(WHOLE), range(N, WHOLE), range(17, WHOLE), range(4, N)])
@pytest.mark.parametrize('p', [0.01, 0.1])
def test_by_question(run, asked, p):
    prefix, question = run
    stats = Scorer(prefix).statistics(asked, p, question)
    assert stats.queries == len(asked) and stats.n == N
    for layer in range(LAYERS):
        whole, visible = matrix(prefix, question, layer)
        rows, seen = whole[:, asked], visible[list(asked)]
        wanted = rows[..., :N].sum(1)
        torch.testing.assert_close(stats.columns[layer].double(), wanted, atol=1e-5, rtol=0)
        reached = (rows >= p * rows.amax(-1, keepdim=True)) & seen
        share = reached.sum((1, 2)) / seen.sum()
        torch.testing.assert_close(stats.density[layer], share, atol=1e-6, rtol=0)


def test_by_row_the_prefix_alone_is_seen(run):
    prefix, _ = run
    stats = Scorer(prefix).statistics(range(15, N))
    for layer in range(LAYERS):
        q = prefix.queries[layer][15:].double().transpose(0, 1)
        k = prefix.keys[layer].double().repeat_interleave(HEADS // KV_HEADS, 0)
        wanted = (q @ k.mT / DIM**0.5).softmax(-1).sum(1)
        torch.testing.assert_close(stats.columns[layer].double(), wanted, atol=1e-5, rtol=0)


def test_without_queries_nothing_is_scored(run):
    stats = Scorer(run[0]).statistics(range(0))
    assert stats.queries == 0 and not stats.columns.any() and (stats.density == 1).all()


def test_attention_over_a_prefix_and_a_tail_is_a_part_of_the_matrix(run):
    prefix, question = run
    for layer in range(LAYERS):
        keys = prefix.keys[layer], question.keys[layer]
        rows = attention(question.queries[layer][2:], *keys, start=2)
        wanted = matrix(prefix, question, layer)[0][:, N + 2 :]
        torch.testing.assert_close(rows.double(), wanted, atol=1e-6, rtol=0)
