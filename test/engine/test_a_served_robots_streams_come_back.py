"""A capsule restores one robot's streams, token for token, and ends no other robot's streams."""

import time
from dataclasses import replace

import pytest
from capsule_sessions import capsules_of

from embodied_kv.serving.batch import KeptRows, serve
from embodied_kv.serving.stream_quota import QuotaError, ServedPart, StreamQuota
from embodied_kv.session.engine_part import Branch

A, B = '/a', '/b'


class Fleet:
    """Two robots of one engine, with their streams and capsules."""

    def __init__(self, engine, observe):
        self.engine, self._observe = engine, observe
        self.kept, self.shares = KeptRows(engine), StreamQuota(engine)
        self.capsules = {}
        for robot in (A, B):
            self.shares.join(robot)
            part = ServedPart(engine, robot, self.kept, self.shares)
            self.capsules[robot] = capsules_of(engine, part=part)

    def round(self, number):
        frames = [self._observe(number + 10 * i, robot=robot) for i, robot in enumerate((A, B))]
        frames = [replace(frame, sequence=number) for frame in frames]
        serve(self.engine, frames, time.monotonic() + 60.0, self.kept)

    def ask(self, robot, text='what is red?', **how):
        with self.shares.room(robot):
            return self.engine.open(self.kept.newest(robot), text, max_tokens=12, **how)

    def steps(self, count):
        while any(stream.is_new for stream in self.engine.kv.streams.live()):
            self.engine.decode()
        for _ in range(count):
            self.engine.decode()

    def rest(self, robot):
        """Decode all streams to their ends; return the tokens of the robot's streams in order."""
        streams = self.shares.of(robot)
        while self.engine.kv.streams.live():
            self.engine.decode()
        return [tuple(stream.tokens) for stream in streams]


@pytest.fixture
def fleet(make_engine, observe):
    return Fleet(make_engine(max_batch_robots=2, rows=16, streams=8), observe)


@pytest.mark.parametrize('steps', [0, 3])
def test_restored_streams_say_what_they_would_have_said_amid_those_of_others(fleet, steps):
    fleet.round(1)
    fleet.ask(A), fleet.ask(B)
    fleet.round(2)  # now the stream reads a row that is not the newest
    fleet.ask(A, 'Narrate:', temperature=1.0, seed=3)
    fleet.steps(steps)
    fleet.capsules[A].snapshot('here')
    expected = fleet.rest(A)
    fleet.round(3)
    others = fleet.ask(B), fleet.ask(A)
    fleet.steps(2)
    resumed = fleet.capsules[A].rollback('here')
    assert len(resumed.streams) == 2
    assert [stream.reason for stream in others] == ['', 'replaced']
    assert (
        fleet.engine.kv.frames.current(A).sequence == 2
        and fleet.engine.kv.frames.current(B).sequence == 3
    )
    assert fleet.rest(A) == expected
    fleet.engine.kv.check_integrity()


def test_branches_go_on_beside_what_lives_within_the_robots_share(fleet):
    fleet.round(1)
    stream, other = fleet.ask(A), fleet.ask(B)
    fleet.steps(2)
    fleet.capsules[A].snapshot('here')
    grown, _ = fleet.capsules[A].fork('here', [Branch(), Branch(7)])
    assert len(fleet.shares.of(A)) == 3 and not stream.reason
    assert all(branch.tokens == stream.tokens for streams in grown for branch in streams)
    assert fleet.shares.each == 4
    fleet.capsules[A].fork('here', [Branch(), Branch()])  # ends its own oldest stream
    assert stream.reason == 'evicted' and not other.reason
    with pytest.raises(QuotaError, match='at most 4, .*got 5'):
        fleet.capsules[A].fork('here', [Branch()] * 5)
    assert len(fleet.shares.of(A)) == 4 and not other.reason
    fleet.engine.kv.check_integrity()


def test_more_than_its_share_of_now_does_not_come_back(fleet):
    fleet.round(1)
    for _ in range(4):
        fleet.ask(A)
    fleet.steps(1)
    fleet.capsules[A].snapshot('four')
    for robot in ('/c', '/d'):  # now there are four robots for eight streams
        fleet.shares.join(robot)
    before = fleet.shares.of(A)
    with pytest.raises(QuotaError, match='at most 2, as one of 4 robots .got 4'):
        fleet.capsules[A].rollback('four')
    assert fleet.shares.of(A) == before


def test_a_mute_fleet_brings_back_a_row_but_no_stream(fleet):
    fleet.round(1)
    fleet.capsules[A].snapshot('silent')
    fleet.ask(A)
    fleet.steps(1)
    fleet.capsules[A].snapshot('speaking')
    fleet.shares.leave(A)
    fleet.capsules[A].rollback('silent')
    with pytest.raises(QuotaError, match='must have a session'):
        fleet.capsules[A].rollback('speaking')
