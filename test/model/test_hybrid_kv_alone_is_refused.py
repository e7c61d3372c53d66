"""Keys and values without their fold are refused; if forced, decoding diverges."""

import hybrid_sessions as sessions
import pytest
import torch

TOKENS = sessions.prompt(100)
OTHER = sessions.prompt(100, seed=1)
SOON = 3  # tokens within which a wrong fold must change the output


def part(saved, *names):
    state, facts = saved
    return (
        {name: t for name, t in state.items() if name.split('/')[0] in names},
        {name: mark for name, mark in facts.items() if name in names},
    )


def mixed(a, b):
    return a[0] | b[0], a[1] | b[1]


@pytest.fixture
def saved():
    return sessions.snapshot(sessions.cold(TOKENS))


@pytest.fixture
def other():
    return sessions.snapshot(sessions.cold(OTHER))


def test_kv_alone_is_refused(saved):
    session = sessions.cold(OTHER)
    with pytest.raises(
        ValueError, match='a partial state: fold/recurrent, fold/conv, head/logits missing'
    ):
        session.load(*part(saved, 'kv'))
    sessions.assert_same_bytes(session, sessions.cold(OTHER))


def test_kv_alone_diverges_when_forced(saved):
    expected = sessions.cold(TOKENS).decode(16)
    session = sessions.planner()
    session.load(*saved)
    for name, buffer in session.state().items():
        if name.startswith('fold/'):
            buffer.zero_()
    assert sessions.first_difference(session.decode(16), expected) in range(SOON)


def test_a_fold_of_another_prompt_is_refused(saved, other):
    for stale in ('fold', 'head', 'checkpoint'):
        with pytest.raises(ValueError, match=f'{stale} has folded another prompt than its keys'):
            sessions.planner().load(*mixed(saved, part(other, stale)))


def test_a_fold_of_another_prompt_diverges_when_forced(saved, other):
    expected = sessions.cold(TOKENS).decode(16)
    session = sessions.planner()
    state, _ = mixed(saved, part(other, 'fold'))
    session.load(state, saved[1])
    assert sessions.first_difference(session.decode(16), expected) in range(SOON)


def test_a_fold_of_a_longer_prompt_is_refused(saved):
    longer = sessions.snapshot(sessions.cold([*TOKENS, 1]))
    with pytest.raises(ValueError, match='fold has folded another prompt'):
        sessions.planner().load(*mixed(saved, part(longer, 'fold')))


def test_other_keys_under_the_facts_of_this_prompt_are_refused(saved, other):
    with pytest.raises(ValueError, match='kv has folded another prompt'):
        sessions.planner().load(other[0], saved[1])


@pytest.mark.parametrize('name', ['kv/k', 'kv/tokens', 'fold/conv', 'head/logits'])
def test_every_buffer_is_needed(saved, name):
    state, facts = saved
    del state[name]
    with pytest.raises(ValueError, match=f'a partial state: {name} missing'):
        sessions.planner().load(state, facts)


@pytest.mark.parametrize('name', ['checkpoint/conv', 'checkpoint/recurrent'])
def test_half_a_checkpoint_is_refused(saved, name):
    state, facts = saved
    del state[name]
    with pytest.raises(ValueError, match=f'{name} missing'):
        sessions.planner().load(state, facts)


def test_what_does_not_fit_is_refused(saved):
    state, facts = saved
    with pytest.raises(ValueError, match='no buffer of this planner: fold/gate'):
        sessions.planner().load(state | {'fold/gate': state['fold/conv']}, facts)
    with pytest.raises(ValueError, match='fold/conv is torch.float64'):
        sessions.planner().load(state | {'fold/conv': state['fold/conv'].double()}, facts)
    with pytest.raises(ValueError, match=r'kv/k is torch.float32 \[2, 2, 99, 16\], not'):
        sessions.planner().load(state | {'kv/k': state['kv/k'][:, :, :99]}, facts)
    with pytest.raises(ValueError, match='kv/length says 101, facts say 100'):
        sessions.planner().load(state | {'kv/length': torch.tensor([101])}, facts)
    with pytest.raises(ValueError, match='no facts of: fold'):
        sessions.planner().load(state, {k: v for k, v in facts.items() if k != 'fold'})
    with pytest.raises(ValueError, match='100 tokens do not fit into 96'):
        sessions.planner(capacity=96).load(state, facts)
    with pytest.raises(ValueError, match='a checkpoint at 64 of 100 tokens; blocks have 128'):
        sessions.planner(block=128).load(state, facts)
