"""The hybrid planner with its buffers equals transformers' model with transformers' cache."""

from dataclasses import replace

import hybrid_sessions as sessions
import pytest
import torch
from transformers import DynamicCache

from benchmarks.hybrid.config import PLANNER_SMALL, PLANNER_TINY, planner_preset


@torch.inference_mode()
def test_prefill_then_decode_equals_one_call_of_transformers():
    session = sessions.cold(sessions.prompt(150))
    model = session.model
    reference = DynamicCache(config=model.config)
    ids = torch.tensor([sessions.prompt(150)])
    logits = model(ids, past_key_values=reference).logits[0, -1]
    torch.testing.assert_close(session.logits, logits, atol=1e-4, rtol=0)
    for token in session.decode(5):
        assert token == int(logits.argmax())
        logits = model(torch.tensor([[token]]), past_key_values=reference).logits[0, -1]
    torch.testing.assert_close(session.logits, logits, atol=1e-4, rtol=0)


def test_the_size_of_a_block_changes_rounding_alone():
    small, large = sessions.planner(), sessions.planner(block=128)
    for session in (small, large):
        session.prefill(sessions.prompt(300))
    torch.testing.assert_close(small.logits, large.logits, atol=1e-4, rtol=0)


def test_what_is_said_depends_on_the_first_token():
    tokens = sessions.prompt(40)
    other = [(tokens[0] + 1) % PLANNER_TINY.vocab_size, *tokens[1:]]
    said = sessions.cold(tokens).decode(24)
    assert said != sessions.cold(other).decode(24)
    assert len(set(said)) > 12, 'greedy tokens repeat: they would hide a lost state'


def test_weights_are_a_function_of_the_seed():
    a, b, c = (sessions.random_hybrid(PLANNER_TINY, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a['lm_head.weight'], c['lm_head.weight'])


def test_presets_are_found_by_name():
    assert planner_preset('planner_small') is PLANNER_SMALL
    with pytest.raises(ValueError, match="no planner 'big'; there are: planner_tiny, planner_s"):
        planner_preset('big')


@pytest.mark.parametrize('change', [dict(block=96), dict(block=0), dict(full_every=5)])
def test_sizes_that_are_no_hybrid_are_refused(change):
    with pytest.raises(ValueError, match='no multiple of the chunk|are no hybrid'):
        replace(PLANNER_TINY, **change)
