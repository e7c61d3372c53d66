"""A state is restored at any position: within a block, after decoding, into used buffers."""

import hybrid_sessions as sessions
import pytest
import torch
from hybrid_sessions import BLOCK

from benchmarks.hybrid.config import PLANNER_TINY

N = 16


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('length', [1, BLOCK - 1, BLOCK, 2 * BLOCK + 9])
def test_restore_then_decode_equals_never_interrupted(length, dtype):
    session = sessions.cold(sessions.prompt(length), dtype)
    session.decode(3)
    saved = sessions.snapshot(session)
    expected = session.decode(N)
    assert len(set(expected)) > N // 2
    restored = sessions.planner(dtype)
    restored.load(*saved)
    assert restored.decode(N) == expected
    sessions.assert_same_bytes(restored, session)


def test_it_survives_another_prompt_in_every_live_buffer():
    session = sessions.cold(sessions.prompt(100))
    saved = sessions.snapshot(session)
    expected = session.decode(N)
    session.prefill(sessions.prompt(300, seed=1))
    assert session.decode(N) != expected
    dirtied = session.state()
    assert [name for name, kept in saved[0].items() if torch.equal(kept, dirtied[name])] == []
    session.load(*saved)
    assert session.decode(N) == expected


def test_not_even_unreadable_bytes_stay():
    exact = sessions.cold(sessions.prompt(100))
    saved = sessions.snapshot(exact)
    session = sessions.cold(sessions.prompt(PLANNER_TINY.capacity))  # it has used every position
    for begin in (lambda: session.load(*saved), lambda: session.prefill(sessions.prompt(100))):
        for buffer in session.buffers.values():
            buffer.fill_(float('nan') if buffer.is_floating_point() else -1)
        begin()
        for name, buffer in session.buffers.items():
            assert torch.equal(buffer, exact.buffers[name]), name


def test_a_load_of_a_load_is_the_same_state():
    saved = sessions.snapshot(sessions.cold(sessions.prompt(70)))
    session = sessions.planner()
    session.load(*saved)
    session.load(session.state(), session.facts())
    sessions.assert_same_bytes(session, sessions.cold(sessions.prompt(70)))


def test_addresses_never_change():
    session = sessions.planner()

    before = {name: buffer.data_ptr() for name, buffer in session.buffers.items()}
    session.prefill(sessions.prompt(100))
    saved = sessions.snapshot(session)
    session.append(sessions.prompt(60, seed=1))
    session.decode(2)
    session.load(*saved)
    assert {name: buffer.data_ptr() for name, buffer in session.buffers.items()} == before
    for name, view in session.state().items():
        assert view.data_ptr() == before[name]


def test_state_holds_valid_positions_alone():
    session = sessions.cold(sessions.prompt(70))
    c = session.config
    state = session.state()
    assert state['kv/k'].shape == (len(c.full_layers), c.kv_heads, 70, c.head_dim)
    assert state['kv/tokens'].tolist() == sessions.prompt(70)
    assert {part: session.facts()[part]['length'] for part in session.facts()} == {
        'kv': 70, 'fold': 70, 'checkpoint': BLOCK, 'head': 70
    }  # fmt: skip
