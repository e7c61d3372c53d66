"""Which images and joint positions make one moment; times in ms for the eye."""

import numpy as np
import pytest

from embodied_kv.nodes.observation.synchronizer import Synchronizer

MS = 1_000_000
JOINTS = np.zeros(3)


class Feed:
    """Two views, tolerance 20 ms, timeout 500 ms; stamps and receipt differ by `latency`."""

    def __init__(self, latency=5):
        self.sync, self.latency = Synchronizer(('a', 'b'), 0.02, 0.5), latency

    def image(self, view, stamp):
        received = (stamp + self.latency) / 1e3
        return self.sync.image(view, stamp * MS, received, f'{view}{stamp}')

    def joints(self, stamp, value=0.0):
        self.sync.joints(stamp * MS, stamp / 1e3, np.full(3, value))

    def at(self, now):
        return self.sync.newest(now / 1e3)


@pytest.fixture
def feed():
    return Feed()


def test_images_of_one_stamp_make_a_moment_once(feed):
    feed.joints(100)
    feed.image('a', 100)
    assert feed.at(106) is None and feed.sync.waits == 'no image yet from b'
    feed.image('b', 100)
    moment = feed.at(106)
    assert moment.images == ('a100', 'b100') and moment.stamp == 100 * MS
    assert feed.sync.waits == ''
    assert feed.at(107) is None


def test_only_the_newest_is_taken(feed):
    for stamp in (100, 133, 166):
        feed.joints(stamp, stamp)
        feed.image('a', stamp)
        feed.image('b', stamp)
    moment = feed.at(170)
    assert moment.images == ('a166', 'b166') and moment.positions[0] == 166


@pytest.mark.parametrize('apart, pairs', [(20, True), (21, False)])
def test_stamps_pair_within_the_tolerance(feed, apart, pairs):
    feed.joints(100 + apart)
    feed.image('a', 100)
    feed.image('b', 100 + apart)
    assert (feed.at(130) is not None) == pairs
    assert ('apart, tolerance is 20 ms' in feed.sync.waits) != pairs


def test_the_stamp_is_that_of_the_newest_image(feed):
    feed.joints(110)
    feed.image('b', 110)
    feed.image('a', 100)
    assert feed.at(120).stamp == 110 * MS


def test_joint_positions_are_those_nearest_to_the_images(feed):
    for stamp in range(80, 300, 10):
        feed.joints(stamp, stamp)
    feed.image('a', 104)
    feed.image('b', 104)
    assert feed.at(300).positions[0] == 100


def test_without_joint_positions_near_by_there_is_no_moment(feed):
    feed.joints(50)
    feed.image('a', 100)
    feed.image('b', 100)
    assert feed.at(110) is None
    assert (
        feed.sync.waits
        == 'the nearest joint positions lie 50 ms from the images, tolerance is 20 ms'
    )


def test_a_silent_view_is_missing_after_the_timeout_and_returns(feed):
    for stamp in range(0, 1000, 100):
        feed.joints(stamp)
        feed.image('a', stamp)
        if stamp <= 300:
            feed.image('b', stamp)
    assert feed.sync.look(0.8) == ()
    assert feed.sync.look(0.91) == ('b',)
    assert feed.at(910).images == ('a900', None)
    feed.joints(1000)
    feed.image('a', 1000)
    feed.image('b', 1000)
    assert feed.at(1006).images == ('a1000', 'b1000')
    assert feed.sync.look(1.01) == ()


def test_without_any_view_nothing_is_given(feed):
    feed.joints(100)
    feed.image('a', 100)
    feed.image('b', 100)
    assert feed.at(2000) is None
    assert feed.sync.waits == 'no camera is alive: a, b'


def test_stamps_that_jump_back_drop_what_is_later(feed):
    feed.joints(5000)
    feed.image('a', 5000)
    feed.image('b', 5000)
    assert feed.at(5010)
    feed.latency = 5005  # the world's clock was set back, the steady one was not
    feed.joints(10)
    assert not feed.image('a', 10)
    assert feed.at(5016) is None
    assert not feed.image('b', 10)
    moment = feed.at(5017)
    assert moment.images == ('a10', 'b10') and moment.stamp == 10 * MS
    assert feed.image('a', 43) and feed.image('b', 43)


def test_a_straggler_from_the_old_time_does_not_stop_the_new(feed):
    feed.image('a', 5000)
    feed.image('b', 5000)
    feed.latency = 5005
    feed.image('a', 10)
    feed.image('b', 5033)
    feed.joints(43)
    assert feed.at(5030) is None
    feed.image('b', 43)
    feed.image('a', 43)
    assert feed.at(5060).images == ('a43', 'b43')


def test_a_recording_that_begins_again_after_a_pause_is_noticed(feed):
    feed.joints(5000)
    feed.image('a', 5000)
    feed.image('b', 5000)
    assert feed.at(5010)
    feed.latency = 9000
    assert not feed.image('a', 10)
    feed.joints(10)
    feed.image('b', 10)
    assert feed.at(9015).images == ('a10', 'b10')


def test_restart_forgets(feed):
    feed.joints(100)
    feed.image('a', 100)
    feed.image('b', 100)
    feed.sync.restart(0.1)
    assert feed.at(110) is None and 'no image yet' in feed.sync.waits
