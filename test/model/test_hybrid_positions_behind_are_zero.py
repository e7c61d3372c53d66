"""Positions after those that a session has written are zero: masked slots must be finite."""

import random

import hybrid_sessions as sessions
import pytest
import torch

from benchmarks.hybrid.state import POSITIONAL

STEPS = 12


def written(session):
    """Return the number of positions up to the last nonzero one in any buffer."""
    last = 0
    for name, axis in POSITIONAL.items():
        by_position = session.buffers[name].movedim(axis, 0).reshape(session.config.capacity, -1)
        last = max([last, *(by_position.any(1).nonzero() + 1).flatten().tolist()])
    return last


@pytest.mark.parametrize('seed', range(4))
def test_positions_behind_the_end_are_zero_after_any_operations(seed):
    draw = random.Random(seed)
    session, saved = sessions.planner(), []
    for step in range(STEPS):
        room = session.config.capacity - session.length
        do = draw.choice(['prefill', 'append', 'decode', 'save', 'load'])
        if do == 'prefill':
            session.prefill(sessions.prompt(draw.randint(1, 400), seed=step))
        elif do == 'append' and room:
            session.append(sessions.prompt(draw.randint(1, min(room, 90)), seed=step))
        elif do == 'decode' and session.length:
            session.decode(draw.randint(0, min(room, 9)))
        elif do == 'save':
            saved.append(sessions.snapshot(session))
        elif saved:
            session.load(*draw.choice(saved))
            assert written(session) <= session.length
        assert written(session) <= session._live.used


def test_a_session_that_is_not_finite_leaves_nothing_to_the_next():
    exact = sessions.cold(sessions.prompt(100))
    saved = sessions.snapshot(exact)
    session = sessions.cold(sessions.prompt(300, seed=1))
    session.decode(20)
    for name, live in session.state().items():
        if name != 'kv/length':
            live.fill_(float('nan') if live.is_floating_point() else -1)
    session.load(*saved)
    assert written(session) == 100
    assert torch.isfinite(session.buffers['kv/k']).all()
    assert session.decode(16) == exact.decode(16)
    sessions.assert_same_bytes(session, exact)
