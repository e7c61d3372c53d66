"""A robot of a fleet opens streams within its quota, and ends no stream of another robot."""

import time
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.serving.batch import KeptRows, serve
from embodied_kv.serving.stream_quota import QuotaError, StreamQuota

ROBOTS = ('/a', '/b', '/c')


class Fleet:
    """An engine that serves robots and opens streams on their kept rows."""

    def __init__(self, engine, observe, robots=ROBOTS):
        self.engine, self.kv, self._observe = engine, engine.kv, observe
        self.kept, self.shares = KeptRows(engine), StreamQuota(engine)
        self._rounds = 0
        for robot in robots:
            self.shares.join(robot)

    def serve(self, *robots):
        self._rounds += 1
        frames = [replace(self._observe(self._rounds), robot=robot) for robot in robots]
        served = serve(self.engine, frames, time.monotonic() + 60.0, self.kept)
        assert not any(isinstance(result, Exception) for result in served)

    def open(self, robot, **how):
        with self.shares.room(robot, **how):
            return self.engine.open(self.kept.newest(robot), 'what is red?', max_tokens=40)

    def step(self):
        """Decode until every stream has taken part in a common step."""
        while any(len(stream.tokens) < 2 for stream in self.kv.streams.live()):
            self.engine.decode()


@pytest.fixture
def fleet(make_engine, observe):
    made = Fleet(make_engine(max_batch_robots=2, rows=14, streams=6), observe)
    made.serve('/a', '/b')
    made.serve('/c')
    return made


def test_streams_are_shared_equally_and_rows_bound_them(fleet, make_engine, observe):
    assert (fleet.shares.capacity, fleet.shares.each) == (6, 2)
    fleet.shares.leave('/c')
    assert fleet.shares.each == 3
    few = Fleet(make_engine(max_batch_robots=2, rows=7, streams=6), observe)
    assert (few.shares.capacity, few.shares.each) == (2, 1)  # 7 rows: 2 for a batch, 3 newest
    none = Fleet(make_engine(max_batch_robots=2, rows=5, streams=6), observe)
    assert (none.shares.capacity, none.shares.each) == (0, 0)
    none.serve('/a')
    with pytest.raises(QuotaError, match='raise engine.streams and engine.rows'):
        none.open('/a')


def test_beyond_its_share_a_robots_own_oldest_stream_ends(fleet):
    others = [fleet.open(robot) for robot in ('/a', '/c') for _ in range(2)]
    own = [fleet.open('/b') for _ in range(2)]
    fleet.step()
    third = fleet.open('/b')
    assert [s.reason for s in own] == ['evicted', '']
    assert not any(s.reason for s in (*others, third))
    fleet.kv.check_integrity()


def test_a_flood_of_questions_ends_nothing_that_has_not_had_its_turn(fleet):
    other = fleet.open('/a')
    own = [fleet.open('/b') for _ in range(2)]
    for _ in range(50):
        with pytest.raises(QuotaError, match='wait for the first words of one'):
            fleet.open('/b')
    assert not any(s.reason for s in (other, *own))
    said = len(other.tokens)
    for _ in range(12):  # the other stream continues at any rate of questions
        fleet.engine.decode()
        with suppress(QuotaError):
            fleet.open('/b')
    assert len(other.tokens) >= said + 3 and not other.reason


def test_a_prompt_ends_no_stream(fleet):
    own = [fleet.open('/b') for _ in range(2)]
    fleet.step()
    with pytest.raises(QuotaError):
        fleet.open('/b', ends=False)
    assert not any(s.reason for s in own)


def test_a_robot_that_leaves_ends_its_own_streams_alone(fleet):
    mine, other = fleet.open('/a'), fleet.open('/b')
    fleet.shares.leave('/a')
    assert (mine.reason, other.reason) == ('cancelled', '')
    with pytest.raises(QuotaError, match='/a must have a session'):
        fleet.open('/a')


def test_a_newcomer_waits_for_those_who_have_more(fleet):
    fleet.shares.leave('/c')
    taken = [fleet.open(robot) for robot in ('/a', '/b') for _ in range(3)]
    fleet.shares.join('/c')
    with pytest.raises(QuotaError, match='at most 6 .got 6 and 1 more'):
        fleet.open('/c')
    assert not any(s.reason for s in taken)
    fleet.step()
    fleet.open('/a')  # ends two of its own: it is back at its quota
    assert [s.reason for s in taken].count('evicted') == 2
    fleet.open('/c')


ACTS = st.lists(
    st.tuples(st.sampled_from(['serve', 'ask', 'prompt', 'step']), st.sampled_from(ROBOTS)),
    max_size=40,
)


@settings(max_examples=15, deadline=None)
@given(acts=ACTS)
def test_no_robots_stream_ends_for_another_whatever_happens(policy, observe, acts):
    config = EngineConfig(rows=11, max_batch_robots=2, streams=6, time_budget=False)
    fleet = Fleet(Engine(policy, config), observe)
    fleet.serve('/a', '/b')
    fleet.serve('/c')
    for act, robot in acts:
        before = {robot: fleet.shares.of(robot) for robot in ROBOTS}
        if act == 'serve':
            fleet.serve(robot)
        elif act == 'step':
            fleet.engine.decode()
        else:
            with suppress(QuotaError):
                fleet.open(robot, ends=act == 'ask')
        for other in ROBOTS:
            ended = [s.reason for s in before[other] if s.reason not in ('', 'length')]
            assert not ended or (act == 'ask' and other == robot)
        assert len(fleet.kv.streams.live()) <= fleet.shares.capacity
        fleet.kv.check_integrity()
    for robot in ROBOTS:
        assert len(fleet.shares.of(robot)) <= fleet.shares.each
