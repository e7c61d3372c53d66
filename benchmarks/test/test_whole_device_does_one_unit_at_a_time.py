"""The device in virtual time runs chunks first, and shares the rest of the time fairly."""

from itertools import count

import pytest

from benchmarks.fleet.serving.schedule import Schedule
from benchmarks.whole.device import Device
from embodied_kv.engine.engine_thread import PATIENCE


class World:
    """A device; `done` records what ended, and when."""

    def __init__(self, slack=1.0, words=0):
        looks = count()
        self.schedule, self.done, self.slack, self.left = Schedule(), [], slack, words
        self.device = Device(
            self.schedule,
            lambda: float(next(looks)),  # each unit takes 1 s
            lambda kind, now: self.slack > 0,
            self._words,
        )

    def _words(self, now):
        if not self.left:
            return None
        self.left -= 1
        return lambda: self.done.append(('word', self.schedule.now))

    def job(self, name, client='/a'):
        self._note(name, self.device.call('plans', lambda: name, client))

    def chunk(self, name):
        self._note(name, self.device.serve(lambda: name))

    def _note(self, name, promise):
        promise.add_done_callback(lambda p: self.done.append((p.result(), self.schedule.now)))

    def run(self, until):
        self.schedule.at(0.0, lambda: None)
        self.schedule.run(lambda: self.schedule.now < until, self.device.next)


def test_chunks_go_first_and_jobs_and_words_take_turns():
    world = World(words=1)
    world.job('a'), world.job('b'), world.chunk('c')
    world.run(until=5.0)
    assert world.done == [('c', 1.0), ('a', 2.0), ('word', 2.0), ('b', 4.0)]
    assert world.device.spent == dict(chunks=1.0, plans=2.0, words=1.0)


def test_robots_with_jobs_take_turns():
    world = World()
    world.job('a'), world.job('b'), world.job('c', '/b')
    world.run(until=5.0)
    assert world.done == [('a', 1.0), ('c', 2.0), ('b', 3.0)]


def test_a_chunk_waits_for_one_unit_at_most():
    world = World(words=3)
    world.schedule.at(0.5, lambda: world.chunk('c'))
    world.run(until=3.0)
    assert world.done[:3] == [('word', 0.0), ('c', 2.0), ('word', 2.0)]


def test_a_job_waits_for_slack_but_not_for_ever():
    world = World(slack=0.0)
    world.job('a')
    world.run(until=2.0)
    ((_, moment),) = world.done
    assert PATIENCE + 1.0 <= moment <= PATIENCE + 1.03


def test_what_cannot_be_done_is_raised_for_who_waits():
    world = World()
    promise = world.device.call('plans', lambda: 1 / 0, '/a')
    world.run(until=2.0)
    with pytest.raises(ZeroDivisionError):
        promise.result(timeout=0)


def test_what_nobody_waits_for_is_raised_at_once():
    world = World()
    world.device = Device(
        world.schedule, lambda: 0.0, lambda kind, now: True, lambda now: lambda: 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        world.run(until=1.0)


def test_a_device_that_is_gone_ends_nothing():
    world = World()
    world.job('a')
    world.schedule.at(0.5, lambda: setattr(world.device, 'is_gone', True))
    world.run(until=3.0)
    assert world.done == []
