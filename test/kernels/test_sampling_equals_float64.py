"""Each slot gets the token of its greatest logit, or one by the inverse distribution function."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from embodied_kv.kernels.sampling import BLOCK, sample_tokens

VOCAB = 37
TOLD = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.7, 1.0, 30.0]), st.floats(0, 1, exclude_max=True)),
    min_size=1,
    max_size=6,
)


def made(slots, seed, vocab=VOCAB):
    return torch.randn(slots, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def drawn_of(logits, told):
    """Return the sampled tokens. told: temperature and share of each slot."""
    temperatures, shares = torch.tensor(told, dtype=torch.float64).unbind(1)
    return sample_tokens(logits, *logits.max(-1), temperatures, shares).tolist()


def ends(logits, temperature):
    """Return where the share of each token of one slot begins and ends, in float64."""
    scores = logits.double().numpy()
    weights = np.exp((scores - scores.max()) / temperature)
    cumulative = np.cumsum(weights / weights.sum())
    return np.append(0, cumulative[:-1]), cumulative


@settings(deadline=None)
@given(st.integers(0, 999), TOLD, st.sampled_from([1, VOCAB, BLOCK, 3 * BLOCK + 5]))
def test_the_share_of_a_slot_is_in_that_of_its_token(seed, told, vocab):
    logits = made(len(told), seed, vocab)
    for own, (temperature, share), token in zip(logits, told, drawn_of(logits, told), strict=True):
        if temperature == 0:
            assert token == own.argmax()
            continue
        begin, end = (side[token] for side in ends(own, temperature))
        assert begin - 1e-6 <= share <= end + 1e-6 and end - begin > 1e-13


@settings(deadline=None)
@given(st.integers(0, 999), TOLD, st.sampled_from([VOCAB, 3 * BLOCK + 5]))
def test_each_slot_has_the_token_that_it_has_alone(seed, told, vocab):
    logits = made(len(told), seed, vocab)
    alone = [
        drawn_of(own[None], [own_told])[0] for own, own_told in zip(logits, told, strict=True)
    ]
    assert drawn_of(logits, told) == alone
    backwards = drawn_of(logits.flip(0), told[::-1])
    assert backwards[::-1] == alone


def test_each_token_is_drawn_as_often_as_it_is_likely():
    vocab, draws = 2 * BLOCK + 3, 1 << 16
    logits = made(1, 3, vocab)
    told = [(1.5, (i + 0.5) / draws) for i in range(draws)]
    found = []
    for first in range(0, draws, 1 << 12):
        some = told[first : first + (1 << 12)]
        found += drawn_of(logits.expand(len(some), -1), some)
    begin, end = ends(logits[0], 1.5)
    counts = np.bincount(found, minlength=vocab)
    assert np.abs(counts - (end - begin) * draws).max() <= 1.1


@pytest.mark.parametrize('share', [0.0, 1 - 2**-53])
def test_the_least_and_the_greatest_share_draw_tokens_that_are_likely(share):
    logits = torch.full((1, 3 * BLOCK + 5), -torch.inf)
    logits[0, [7, 900]] = 0.0
    assert drawn_of(logits, [(1.0, share)]) == [7 if share == 0 else 900]


def test_the_sum_is_of_integers_so_that_its_order_changes_nothing():
    operations = make_fx(
        lambda logits, some: sample_tokens(logits, *logits.max(-1), some, some / 2),
        tracing_mode='fake',
    )(made(2, 0), torch.ones(2, dtype=torch.float64))
    sums = [n for n in operations.graph.nodes if 'sum' in str(n.target)]
    assert sums and all(n.meta['val'].dtype == torch.int64 for n in sums)


def test_no_temperature_is_too_small():
    logits = made(2, 1)
    scores, tokens = logits.max(-1)
    tiny = torch.full((2,), 1e-300, dtype=torch.float64)
    shares = torch.tensor([0.01, 0.99], dtype=torch.float64)
    assert torch.equal(sample_tokens(logits, scores, tokens, tiny, shares), tokens)


def test_nan_logits_are_reported_by_the_score_and_a_valid_token_is_returned():
    logits = made(3, 2)
    logits[1, 5] = float('nan')
    scores, tokens = logits.max(-1)
    assert scores.isfinite().tolist() == [True, False, True]
    warm = torch.ones(3, dtype=torch.float64)
    found = sample_tokens(logits, scores, tokens, warm, warm * 0.999)
    assert ((found >= 0) & (found < VOCAB)).all()
