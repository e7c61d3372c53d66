"""The next token, slot by slot: of the greatest logit, or by inverse distribution function."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.kernels.choose import drawn

VOCAB = 37


def made(slots, seed):
    return torch.randn(slots, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def one_by_one(logits, temperature, share):
    """In float64, of one slot."""
    scores = logits.double().numpy()
    if temperature == 0:
        return int(scores.argmax())
    weights = np.exp((scores - scores.max()) / temperature)
    cumulative = np.cumsum(weights / weights.sum())
    return int(np.searchsorted(cumulative, share * cumulative[-1]))


@settings(deadline=None)
@given(
    seed=st.integers(0, 999),
    told=st.lists(
        st.tuples(st.sampled_from([0.0, 0.01, 0.7, 1.0, 30.0]), st.floats(0, 1, exclude_max=True)),
        min_size=1,
        max_size=6,
    ),
)
def test_each_slot_has_the_token_it_would_have_alone(seed, told):
    logits = made(len(told), seed)
    temperatures, shares = torch.tensor(told, dtype=torch.float64).unbind(1)
    scores, tokens = logits.max(-1)
    found = drawn(logits, scores, tokens, temperatures, shares)
    assert found.tolist() == [one_by_one(own, *t) for own, t in zip(logits, told, strict=True)]
    assert torch.equal(scores, logits.amax(-1))


def test_no_temperature_is_too_small():
    logits = made(2, 1)
    scores, tokens = logits.max(-1)
    tiny = torch.full((2,), 1e-300, dtype=torch.float64)
    shares = torch.tensor([0.01, 0.99], dtype=torch.float64)
    assert torch.equal(drawn(logits, scores, tokens, tiny, shares), tokens)


def test_what_is_no_number_is_told_by_its_score_and_the_token_is_one():
    logits = made(3, 2)
    logits[1, 5] = float('nan')
    scores, tokens = logits.max(-1)
    assert scores.isfinite().tolist() == [True, False, True]
    warm = torch.ones(3, dtype=torch.float64)
    found = drawn(logits, scores, tokens, warm, warm * 0.999)
    assert ((found >= 0) & (found < VOCAB)).all()
