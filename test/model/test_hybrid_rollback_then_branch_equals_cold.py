"""A rollback followed by another branch, and each of many forks of a state, equal a cold run."""

import hybrid_sessions as sessions
import pytest

TOKENS = sessions.prompt(90)
LEFT, RIGHT = sessions.prompt(50, seed=1), sessions.prompt(77, seed=2)


def test_rollback_then_other_branch_equals_cold():
    session = sessions.cold(TOKENS)
    boundary = sessions.snapshot(session)
    session.append(LEFT)
    left = session.decode(12)
    session.load(*boundary)
    session.append(RIGHT)
    sessions.assert_same_bytes(session, sessions.cold(TOKENS + RIGHT))
    right = session.decode(12)
    assert right == sessions.cold(TOKENS + RIGHT).decode(12)
    assert right != left


def test_rollback_to_a_decoded_boundary_equals_the_same_words_again():
    session = sessions.cold(TOKENS)
    said = session.decode(6)
    boundary = sessions.snapshot(session)
    more = session.decode(10)
    session.load(*boundary)
    assert session.decode(10) == more
    session.load(*boundary)
    session.append(LEFT)
    sessions.assert_same_bytes(session, sessions.cold([*TOKENS, *said, *LEFT]))


@pytest.mark.parametrize('branch', range(8))
def test_each_fork_equals_its_own_cold_run(branch):
    boundary = sessions.snapshot(sessions.cold(TOKENS))
    tokens = sessions.prompt(10 + branch, seed=10 + branch)
    fork = sessions.planner()
    fork.load(*boundary)
    fork.append(tokens)
    assert fork.decode(6) == sessions.cold(TOKENS + tokens).decode(6)
