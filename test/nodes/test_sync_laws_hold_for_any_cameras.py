"""The invariants of the synchronizer hold for any cameras and any delay."""

import heapq
import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from observation_suite import view

from embodied_kv.nodes.observation.clock import FrameThrottle
from embodied_kv.nodes.observation.joint_merger import JointInput, JointMerger
from embodied_kv.nodes.observation.synchronizer import QUEUE, Stamped, Synchronizer

TOLERANCE, TIMEOUT, MAX_AGE = 0.04, 0.5, 0.1  # s
MS = 1_000_000


@dataclass(frozen=True)
class Camera:
    """A simulated camera. Times are in ms.

    loss: fraction of images that never arrive. dies: when it fails; it returns 700 ms later.
    """

    interval: float
    phase: float = 0.0
    latency: float = 5.0
    jitter: float = 0.0
    loss: float = 0.0
    dies: float = 1e9
    required: bool = False

    def images(self, until, chance):
        """Yield (arrival, stamp) in ms, in the order in which they are sent."""
        moment, arrival = self.phase, 0.0
        while moment < until:
            stamp = moment + chance.uniform(-self.jitter, self.jitter)
            arrival = max(arrival, stamp + self.latency + chance.uniform(0, self.jitter))
            if chance.random() >= self.loss and not self.dies < moment < self.dies + 700:
                yield arrival, stamp
            moment += self.interval


class Joints(JointMerger):
    def __init__(self):
        super().__init__([JointInput('joints', ())], max_age=1.0)

    def awaits(self, stamp):
        return False


def play(cameras, until=2000.0, seed=0, asks=lambda now: True, max_age=1.0):
    """Simulate cameras until a time (ms).

    Yield (now in ms, moment or None, synchronizer) at each arrival for which `asks` is true.
    """
    chance = random.Random(seed)
    views = {str(i): view(str(i), required=c.required)[str(i)] for i, c in enumerate(cameras)}
    sync = Synchronizer(views, Joints(), TOLERANCE, TIMEOUT, max_age)
    sent = [
        [(*image, name) for image in camera.images(until, chance)]
        for name, camera in enumerate(cameras)
    ]
    for arrival, stamp, name in heapq.merge(*sent):
        image = Stamped(round(stamp * MS), stamp / 1e3, arrival / 1e3, stamp)
        sync.image(str(name), image)
        if asks(arrival):
            yield arrival, sync.newest(arrival / 1e3), sync


times = st.floats(0.0, 150.0)
cameras = st.builds(
    Camera,
    interval=st.floats(8.0, 250.0),
    phase=times,
    latency=times,
    jitter=st.floats(0.0, 15.0),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
    dies=st.sampled_from([1e9, 300.0, 900.0]),
    required=st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(cameras, min_size=1, max_size=3), st.integers(0, 99))
def test_the_laws_hold(described, seed):
    newest, given_images = -math.inf, [-math.inf] * len(described)
    for now, moment, sync in play(described, seed=seed, max_age=MAX_AGE):
        assert all(len(view.images) <= QUEUE for view in sync._views.values())
        if moment is None:
            continue
        missing = sync.missing(now / 1e3)
        there = [stamp for stamp in moment.images if stamp is not None]
        assert max(there) - min(there) <= TOLERANCE * 1e3 + 1e-5
        assert now - min(there) <= MAX_AGE * 1e3 + 1e-5
        assert moment.stamp == round(max(there) * MS) > newest
        newest = moment.stamp
        for i, camera in enumerate(described):
            stamp = moment.images[i]
            assert (stamp is None) == (str(i) in missing)
            assert stamp is not None or not camera.required
            if stamp is not None:
                assert stamp >= given_images[i]
                given_images[i] = stamp


def at_rate(described, period, seconds=5.0):
    """Return moments per second if one is requested every `period` ms, as by the pipeline."""
    pace, count = FrameThrottle(period), 0
    for now, moment, _ in play(described, seconds * 1e3, asks=pace.is_due):
        if moment is not None:
            pace.record_frame(now)
            count += 1
    return count / seconds


RIG = {
    'two 30 Hz cameras, one 50 ms late': [Camera(33.3), Camera(33.3, latency=55)],
    'two 30 Hz cameras, one 150 ms late': [Camera(33.3), Camera(33.3, latency=155)],
    'two 30 Hz cameras that run freely': [Camera(33.3), Camera(33.3, phase=16.7)],
    'two 30 Hz cameras that drift': [Camera(33.3), Camera(33.5)],
    'two 15 Hz cameras in antiphase': [Camera(66.7), Camera(66.7, phase=33.3)],
    '30 Hz and 15 Hz': [Camera(33.3), Camera(66.7, phase=10)],
    '60 Hz and 10 Hz': [Camera(16.7), Camera(100.0, phase=3)],
    'three 30 Hz cameras in turn': [Camera(33.3, phase=11.1 * i) for i in range(3)],
    'jitter': [Camera(33.3, jitter=5), Camera(33.3, phase=16.7, jitter=5)],
    'jitter of three': [Camera(33.3, phase=11.1 * i, jitter=3) for i in range(3)],
    'losses': [Camera(33.3, loss=0.1), Camera(33.3, phase=8, loss=0.1)],
}


@pytest.mark.parametrize('rig', RIG)
def test_there_is_a_moment_in_every_control_period(rig):
    assert at_rate(RIG[rig], period=100.0) >= 9.6


@pytest.mark.parametrize('rig', [name for name in RIG if '30 Hz cameras' in name])
def test_moments_come_as_fast_as_cameras(rig):
    assert at_rate(RIG[rig], period=33.3) >= 27


def test_a_moment_is_of_the_newest_images_of_cameras_that_see_at_once():
    for now, moment, _ in play([Camera(33.3), Camera(33.3, latency=9)]):
        if moment is not None:
            assert len(set(moment.images)) == 1 and now - moment.images[0] < 9.1


def test_beyond_the_tolerance_there_is_none():
    slow = [Camera(100.0), Camera(100.0, phase=50.0)]
    assert not [moment for _, moment, _ in play(slow) if moment]


def test_images_without_a_moment_to_come_are_given_up():
    kept = [
        len(view.images)
        for _, moment, sync in play([Camera(33.3), Camera(33.3, latency=6)])
        if moment
        for view in sync._views.values()
    ]
    assert set(kept) == {1}
    unasked = next(play([Camera(10.0), Camera(33.3)], asks=lambda now: now > 1900))[-1]
    assert all(len(view.images) <= 9 for view in unasked._views.values())
