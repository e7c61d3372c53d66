"""An append gives the bytes of a cold prefill, at a block boundary and between two."""

import hybrid_sessions as sessions
import pytest
import torch
from hybrid_sessions import BLOCK

from benchmarks.hybrid.planner import AlignmentError

TOKENS = sessions.prompt(3 * BLOCK + 11)


def without_checkpoint(saved):
    state, facts = saved
    return {name: t for name, t in state.items() if not name.startswith('checkpoint')}, facts


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('cut', [BLOCK, 2 * BLOCK])
def test_aligned_restore_then_append_equals_cold_prefill(cut, dtype):
    saved = sessions.snapshot(sessions.cold(TOKENS[:cut], dtype))
    session = sessions.cold(sessions.prompt(200, seed=1), dtype)
    session.load(*saved)
    session.append(TOKENS[cut:])
    sessions.assert_same_bytes(session, sessions.cold(TOKENS, dtype))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('cut', [1, BLOCK - 1, BLOCK + 1, 2 * BLOCK + 30, len(TOKENS) - 1])
def test_unaligned_restore_then_append_equals_cold_prefill(cut, dtype):
    saved = sessions.snapshot(sessions.cold(TOKENS[:cut], dtype))
    session = sessions.planner(dtype)
    session.load(*saved)
    session.append(TOKENS[cut:])
    sessions.assert_same_bytes(session, sessions.cold(TOKENS, dtype))


def test_many_small_appends_equal_cold_prefill():
    session = sessions.cold(TOKENS[:50])
    for start in range(50, len(TOKENS), 20):
        session.append(TOKENS[start : start + 20])
    sessions.assert_same_bytes(session, sessions.cold(TOKENS))


def test_append_after_decode_over_a_block_boundary_equals_cold_prefill():
    session = sessions.cold(TOKENS[: BLOCK - 5])
    said = session.decode(BLOCK)
    session.append([7])
    sessions.assert_same_bytes(session, sessions.cold([*TOKENS[: BLOCK - 5], *said, 7]))


def test_a_cut_within_a_chunk_would_change_bytes():
    """An append restarts at a block boundary, as results from an unaligned fold are only close."""
    session = sessions.cold(TOKENS[:100])
    session._live.copy_fold('fold', 'checkpoint')
    session._aligned = 100
    session.append(TOKENS[100:])
    exact = sessions.cold(TOKENS)
    torch.testing.assert_close(session.logits, exact.logits, atol=1e-3, rtol=0)
    assert not torch.equal(session.logits, exact.logits)


def test_without_the_checkpoint_append_is_refused_and_decode_goes_on():
    exact = sessions.cold(TOKENS[:100])
    session = sessions.planner()
    session.load(*without_checkpoint(sessions.snapshot(exact)))
    with pytest.raises(AlignmentError, match='100 tokens are folded and no checkpoint'):
        session.append([1])
    assert session.decode(8) == exact.decode(8)


def test_a_state_without_checkpoint_stays_one():
    first, second = sessions.planner(), sessions.planner()
    first.load(*without_checkpoint(sessions.snapshot(sessions.cold(TOKENS[:100]))))
    assert 'checkpoint' not in first.facts()
    second.load(*sessions.snapshot(first))
    with pytest.raises(AlignmentError):
        second.append([1])
    second.prefill(TOKENS[:100])
    second.append([1])
    sessions.assert_same_bytes(second, sessions.cold([*TOKENS[:100], 1]))


def test_at_a_block_boundary_the_fold_is_the_checkpoint():
    saved = sessions.snapshot(sessions.cold(TOKENS[: 2 * BLOCK]))
    session = sessions.planner()
    session.load(*without_checkpoint(saved))
    session.append(TOKENS[2 * BLOCK :])
    sessions.assert_same_bytes(session, sessions.cold(TOKENS))


def test_a_decoded_fold_at_a_block_boundary_is_no_checkpoint():
    exact = sessions.cold(TOKENS[: BLOCK - 4])
    exact.decode(4)
    session = sessions.planner()
    session.load(*without_checkpoint(sessions.snapshot(exact)))
    with pytest.raises(AlignmentError):
        session.append([1])


@pytest.mark.parametrize(
    'tokens, reason',
    [
        ([], 'no tokens to fold'),
        ([320], 'token 320 is not among 320'),
        ([-1], 'token -1 is not among 320'),
        ([0] * 413, '100 tokens and 413 more do not fit into 512'),
    ],
)
def test_a_refused_append_changes_nothing(tokens, reason):
    session = sessions.cold(TOKENS[:100])
    with pytest.raises(ValueError, match=reason):
        session.append(tokens)
    sessions.assert_same_bytes(session, sessions.cold(TOKENS[:100]))


def test_decode_needs_a_prompt_and_room():
    with pytest.raises(ValueError, match='nothing has been prefilled'):
        sessions.planner().decode(1)
    with pytest.raises(ValueError, match='100 tokens and 413 more do not fit into 512'):
        sessions.cold(TOKENS[:100]).decode(413)
    assert len(sessions.cold(TOKENS[:100]).decode(412)) == 412
